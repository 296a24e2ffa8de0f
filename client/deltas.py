"""What the client yields, and the parts of the server's JSON that it reads."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Tokens of the prompt that came from the prefix cache."""

    cached_tokens: int = 0


class ClientUsage(msgspec.Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class ClientDelta(msgspec.Struct, frozen=True):
    """What arrived of one choice since its last delta.

    A choice's last one has `finish_reason`; the stream's last one has `usage`, of all choices together.
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage: ClientUsage | None = None
    logprobs: dict[str, msgspec.Raw] | None = None
    """As the server sent it: `content` for chat, `tokens`, `token_logprobs`, ... for completions."""
    prompt_token_ids: list[int] | None = None
    """In the first delta; of a completion with several choices, in each choice's first."""
    request_id: str = ""
    choice: int = 0


class DeltaContent(msgspec.Struct, frozen=True):
    """`delta` of a chat chunk."""

    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """A choice of either endpoint."""

    index: int = 0
    delta: DeltaContent | None = None
    text: str | None = None
    logprobs: dict[str, msgspec.Raw] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class ErrorDetails(msgspec.Struct, frozen=True):
    """What stands under `error`."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class Chunk(msgspec.Struct, frozen=True):
    """An event of a stream of either endpoint, or an error."""

    id: str = ""
    choices: Annotated[list[ChunkChoice], Meta(max_length=1)] = []
    usage: ClientUsage | None = None
    prompt_token_ids: list[int] | None = None
    error: ErrorDetails | None = None


class ModelEntry(msgspec.Struct, frozen=True):
    """A model that the server has."""

    id: str
    created: int = 0
    owned_by: str = ""
    max_model_len: int | None = None


class ModelEntries(msgspec.Struct, frozen=True):
    """The answer of GET /v1/models."""

    data: list[ModelEntry]


class StatusEntry(msgspec.Struct, frozen=True):
    """The answer of /health and /ready."""

    status: str = ""
    reason: str = ""
