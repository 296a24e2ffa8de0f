"""The JSON objects of both endpoints, as the OpenAI API names their fields. UNSET fields are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..mailbox.messages.requests import Finish


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    """Tokens of the prompt that came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, gc=False):
    """Drafts that were verified, of an engine that speculates."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageObject(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


def usage_object(finishes: Sequence[Finish], num_choices: int) -> UsageObject:
    """The usage of a request whose choices, in order, ended with `finishes`: each prompt counts once, outputs add up.

    `num_choices`: of each prompt. Its later choices find in the cache what the first has left there, so
    `cached_tokens` is that of the first.
    """
    prompts = [finishes[first : first + num_choices] for first in range(0, len(finishes), num_choices)]
    prompt_tokens = sum(max(finish.usage.prompt_tokens for finish in choices) for choices in prompts)
    completion_tokens = sum(finish.usage.completion_tokens for finish in finishes)
    accepted = sum(finish.usage.accepted_tokens for finish in finishes)
    rejected = sum(finish.usage.rejected_tokens for finish in finishes)
    return UsageObject(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokensDetails(sum(choices[0].usage.cached_tokens for choices in prompts)),
        CompletionTokensDetails(accepted, rejected) if accepted or rejected else UNSET,
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
    """`logprobs` of a completions choice: parallel lists, one entry a token; offsets in characters of all tokens.

    None: of the first token of an echoed prompt, which nothing stands before.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptTokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token at one position of the prompt; `rank` is 1 for the most likely."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptTokenLogprob] | None]
"""One entry a token of the prompt: the token itself, then the most likely ones, by token id; None for the first."""


_FINISH_REASONS = ["stop", "length", "tool_calls", "function_call", "repetition", "timeout", "abort"]
FinishReason = Annotated[str, Meta(extra_json_schema={"enum": _FINISH_REASONS})]
"""`timeout`: at its deadline; `abort`: the server was stopped. An error is an answer of another kind."""


class FunctionCall(msgspec.Struct, frozen=True, gc=False):
    """What is called: `arguments` is JSON text, or as much of it as there was."""

    name: str
    arguments: str


class ToolCallObject(msgspec.Struct, frozen=True, gc=False):
    """A call of a chat answer."""

    id: str
    function: FunctionCall
    type: str = "function"


class FunctionCallDelta(msgspec.Struct, frozen=True, gc=False):
    """The name comes once, with the call's first piece; the pieces of `arguments` join to those of the whole answer."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """What a chunk adds to a call; `id` and `type` come with its first piece."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChunkDelta(msgspec.Struct, frozen=True, gc=False):
    """What a chat chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    """The same as `reasoning`, for clients that know it by this name."""
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionCallDelta | UnsetType = UNSET
    """In place of `tool_calls`, if the request had `functions`."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """The message of a chat answer; fields as in `ChunkDelta`."""

    content: str | None
    """null beside calls, if there is no text."""
    role: str = "assistant"
    refusal: str | None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, gc=False):
    """One choice of a chat chunk."""

    delta: ChunkDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    index: int = 0
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, gc=False):
    """The choice of a chat answer."""

    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    index: int = 0
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True, gc=False):
    """One choice of a completions answer or chunk."""

    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    index: int = 0
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A whole answer, or one chunk of a stream: `object` says which."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice] | list[ChatChoice] | list[CompletionChoice] | list[msgspec.Raw]
    """Raw: written before."""
    usage: UsageObject | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    """In the chunk that ends a turn of a streaming session, whose stream goes on."""
