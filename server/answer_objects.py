"""The JSON objects of both endpoints, as the OpenAI API names their fields. UNSET fields are left out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from ..mailbox.messages.requests import Finish, TokenText

MIN_LOGPROB = -9999.0
"""JSON has no minus infinity."""


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    """Tokens of the prompt that came from the prefix cache."""

    cached_tokens: int


class UsageObject(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_object(finishes: Sequence[Finish]) -> UsageObject:
    """The usage of a request whose choices, in order, ended with `finishes`: the prompt counts once, outputs add up.

    Later choices find in the cache what the first has left there, so `cached_tokens` is that of the first.
    """
    prompt_tokens = max(finish.usage.prompt_tokens for finish in finishes)
    completion_tokens = sum(finish.usage.completion_tokens for finish in finishes)
    return UsageObject(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokensDetails(finishes[0].usage.cached_tokens),
    )


class TokenAlternative(msgspec.Struct, frozen=True, gc=False):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """The token at a position."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenAlternative]


class ChatLogprobs(msgspec.Struct, frozen=True, gc=False):
    """`logprobs` of a chat choice: one entry a token."""

    content: list[TokenLogprob]


class CompletionLogprobs(msgspec.Struct, frozen=True, gc=False):
    """`logprobs` of a completions choice: parallel lists, one entry a token; offsets in characters of the output."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChunkDelta(msgspec.Struct, frozen=True, gc=False):
    """What a chat chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class Message(msgspec.Struct, frozen=True, gc=False):
    """The message of a chat answer."""

    content: str
    role: str = "assistant"
    refusal: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, gc=False):
    """One choice of a chat chunk."""

    delta: ChunkDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    index: int = 0
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, gc=False):
    """The choice of a chat answer."""

    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    index: int = 0
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True, gc=False):
    """One choice of a completions answer or chunk."""

    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    index: int = 0
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A whole answer, or one chunk of a stream: `object` says which."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice] | list[ChatChoice] | list[CompletionChoice]
    usage: UsageObject | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


def chat_logprobs(tokens: list[TokenText] | None) -> ChatLogprobs | None:
    """None stays None: the request asked for no log-probabilities."""
    if tokens is None:
        return None
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


def completion_logprobs(tokens: list[TokenText] | None, offset: int) -> CompletionLogprobs | None:
    """`offset`: characters of all tokens before these."""
    if tokens is None:
        return None
    offsets, tops = [], []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
        top: dict[str, float] = {}
        for text, _, logprob in token.top:
            top.setdefault(text, max(logprob, MIN_LOGPROB))
        top.setdefault(token.text, max(token.logprob, MIN_LOGPROB))
        tops.append(top)
    return CompletionLogprobs(
        [token.text for token in tokens], [max(token.logprob, MIN_LOGPROB) for token in tokens], tops, offsets
    )
