"""From tokens with log-probabilities to the objects of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from ..mailbox.messages.requests import PromptDetails, TokenText
from .answer_objects import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    PromptTokenLogprob,
    TokenAlternative,
    TokenLogprob,
)

MIN_LOGPROB = -9999.0
"""JSON has no minus infinity."""


def named_by_id(tokens: Sequence[TokenText], token_ids: Sequence[int]) -> list[TokenText]:
    """The same tokens, each called `token_id:N`. `token_ids`: theirs, in the same order."""
    return [
        TokenText(
            f"token_id:{token_id}",
            token.data,
            token.logprob,
            [(f"token_id:{i}", data, logprob) for i, (_, data, logprob) in zip(token.top_ids, token.top, strict=True)],
            token.top_ids,
            token.rank,
        )
        for token_id, token in zip(token_ids, tokens, strict=True)
    ]


def chat_logprobs(tokens: Sequence[TokenText]) -> ChatLogprobs:
    """One entry a token."""
    return ChatLogprobs(
        [
            TokenLogprob(
                token.text,
                max(token.logprob, MIN_LOGPROB),
                list(token.data),
                [TokenAlternative(text, max(logprob, MIN_LOGPROB), list(data)) for text, data, logprob in token.top],
            )
            for token in tokens
        ]
    )


def completion_logprobs(tokens: Sequence[TokenText], lengths: Sequence[int], offset: int) -> CompletionLogprobs:
    """`lengths`: characters of each token's text, whatever it is called; `offset`: of all tokens before these."""
    offsets = []
    for length in lengths:
        offsets.append(offset)
        offset += length
    return CompletionLogprobs(
        [token.text for token in tokens],
        [max(token.logprob, MIN_LOGPROB) for token in tokens],
        [_alternatives(token) for token in tokens],
        offsets,
    )


def _alternatives(token: TokenText) -> dict[str, float]:
    """The most likely tokens, and the token itself if it is none of them."""
    top: dict[str, float] = {}
    for text, _, logprob in token.top:
        top.setdefault(text, max(logprob, MIN_LOGPROB))
    top.setdefault(token.text, max(token.logprob, MIN_LOGPROB))
    return top


def echoed_tokens(prompt: PromptDetails, num_top: int) -> list[TokenText]:
    """The tokens of a prompt with at most `num_top` alternatives each; of the first one the log-probability means
    nothing. Empty without log-probabilities."""
    if prompt.logprobs is None:
        return []
    first = _first_token(prompt)
    return [first, *(_with_top(token, num_top) for token in prompt.logprobs)]


def _first_token(prompt: PromptDetails) -> TokenText:
    """Its text is what the prompt has before the texts of the others: nothing if it is a mark such as BOS."""
    rest = sum(len(token.data) for token in prompt.logprobs or ())
    data = prompt.text.encode()
    data = data[: max(0, len(data) - rest)]
    return TokenText(data.decode("utf-8", "replace"), data, 0.0, [])


def _with_top(token: TokenText, num_top: int) -> TokenText:
    if len(token.top) <= num_top:
        return token
    return TokenText(token.text, token.data, token.logprob, token.top[:num_top], token.top_ids[:num_top], token.rank)


def prompt_logprobs(prompt: PromptDetails, num_top: int) -> PromptLogprobs:
    """The field of that name, with `num_top` alternatives at each position."""
    entries: PromptLogprobs = [None]
    for token_id, token in zip(prompt.token_ids[1:], prompt.logprobs or (), strict=True):
        entry = {token_id: PromptTokenLogprob(max(token.logprob, MIN_LOGPROB), token.rank, token.text)}
        alternatives = zip(token.top_ids[:num_top], token.top[:num_top], strict=True)
        for rank, (top_id, (text, _, logprob)) in enumerate(alternatives, 1):
            entry.setdefault(top_id, PromptTokenLogprob(max(logprob, MIN_LOGPROB), rank, text))
        entries.append(entry)
    return entries
