"""A prompt of four tokens with log-probabilities, as an engine tells it, and scripts that answer it."""

from __future__ import annotations

import msgspec
from fake_frontend import delta, finish

from callboard.mailbox.messages.requests import PromptDetails, TokenText

PROMPT = "The quick fox"
PROMPT_IDS = [20, 21, 22, 23]
"""The| qu|ick| fox"""


def token(text, logprob, *top, rank=1):
    """`top`: (id, text, logprob)."""
    return TokenText(
        text,
        text.encode(),
        logprob,
        [(other, other.encode(), value) for _, other, value in top],
        [token_id for token_id, _, _ in top],
        rank,
    )


PROMPT_TOKENS = [
    token(" qu", -2.5, (30, " br", -0.5), (31, " la", -1.5), rank=4),
    token("ick", -0.25, (22, "ick", -0.25), (32, "iet", -3.0), rank=1),
    token(" fox", float("-inf"), (33, " dog", -1.0), (34, " cat", -2.0), rank=90),
]
OUTPUT_TOKENS = [
    token(" ju", -0.5, (40, " ju", -0.5), (41, " ra", -1.25)),
    token("mps", -0.75, (42, "mps", -0.75), (43, "ice", -2.25)),
]
OUTPUT_IDS = [40, 42]


def details(stream, *, has_logprobs=True):
    """What the engine tells of the prompt, as far as it was asked to."""
    logprobs = stream.sampling.prompt_logprobs
    if not stream.returns_prompt and logprobs is None:
        return None
    tokens = None
    if logprobs is not None:
        tokens = [
            msgspec.structs.replace(each, top=each.top[:logprobs], top_ids=each.top_ids[:logprobs])
            for each in PROMPT_TOKENS
        ]
    return PromptDetails(PROMPT_IDS, PROMPT, tokens)


def jumps(stream):
    """For each choice " ju" and "mps", the second delta with a part of the first token's text that was held back."""
    k = stream.sampling.logprobs
    tokens = None
    if k is not None:
        tokens = [msgspec.structs.replace(each, top=each.top[:k], top_ids=each.top_ids[:k]) for each in OUTPUT_TOKENS]
    for choice in range(stream.num_choices):
        logprobs = None if tokens is None else tokens[:1]
        stream.push(delta(" j", OUTPUT_IDS[:1], choice=choice, logprobs=logprobs, prompt=details(stream)))
    for choice in range(stream.num_choices):
        logprobs = None if tokens is None else tokens[1:]
        end = finish("length", completion_tokens=2)
        stream.push(delta("umps", OUTPUT_IDS[1:], choice=choice, position=1, logprobs=logprobs, end=end))
