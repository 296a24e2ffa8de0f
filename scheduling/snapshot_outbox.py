"""What was not sent yet, in a snapshot."""

from __future__ import annotations

import msgspec

from ..mailbox.messages.requests import Finish, Refused, TokenLogprobs
from .deltas import Outbox, _Delta
from .request import RequestKey
from .snapshot_fields import put, take
from .snapshot_requests import SavedPrompt, restored_prompt, saved_prompt


class SavedDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The unsent tokens of one attempt of one request."""

    key: RequestKey
    attempt: int
    tokenizer: str
    cached_tokens: int
    position: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish: Finish | None
    pause: Finish | None
    prompt_token_ids: list[int]
    prompt_logprobs: SavedPrompt | None


class SavedOutbox(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`Outbox`: int32 arrays."""

    deltas: list[SavedDelta]
    refused: dict[str, list[Refused]]
    tokenizers: list[str]
    tokenizer_of: bytes
    request_ids: list[str]
    choices: bytes
    attempts: bytes
    cached_tokens: bytes
    first_positions: bytes


def save_outbox(outbox: Outbox) -> SavedOutbox:
    deltas = outbox._deltas.values()
    saved = [take(SavedDelta, delta, prompt_logprobs=saved_prompt(delta.prompt_logprobs)) for delta in deltas]
    return take(SavedOutbox, outbox, deltas=saved)


def restore_outbox(saved: SavedOutbox, outbox: Outbox) -> None:
    put(saved, outbox, without=("deltas",))
    outbox._deltas = {delta.key: _restored_delta(delta) for delta in saved.deltas}


def _restored_delta(saved: SavedDelta) -> _Delta:
    delta = _Delta.__new__(_Delta)
    for name in saved.__struct_fields__:
        setattr(delta, name, getattr(saved, name))
    delta.prompt_logprobs = restored_prompt(saved.prompt_logprobs)
    return delta
