"""Requests in a snapshot: each once, and everywhere else by its number."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import attrgetter

import msgspec
import numpy as np

from ..kv_cache.block_hash import BlockKeys, extra_keys
from ..mailbox.messages.requests import TokenLogprobs
from ..mailbox.messages.sampling import SamplingParams
from .prompt_logprobs import GatheredLogprobs, Piece
from .request import Rank, Request, RequestKey, RequestState
from .row_arrays import RowArrays


class SavedPrompt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`GatheredLogprobs`: of each piece the four arrays, and their width."""

    num_known: int
    pieces: list[tuple[bytes, bytes, bytes, bytes, int]]


class SavedRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The attributes of `Request` under their names. Its numbers while it runs stand in the row arrays."""

    key: RequestKey
    attempt: int
    tokenizer: str | None
    tenant: str
    deadline_ns: int | None
    grammar_key: str
    needs_grammar: bool
    num_remote_tokens: int
    sampling: SamplingParams
    worker_sampling: SamplingParams
    num_sampling_tokens: int
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    end_ids: list[int]
    rank: Rank
    num_prompt_tokens: int
    first_output_index: int
    num_resumed_tokens: int
    is_session: bool
    max_total_tokens: int
    logprobs: list[TokenLogprobs] | None
    state: RequestState
    is_open: bool
    num_counted_tokens: int
    run: int | None
    row: int | None
    num_draft_tokens: int
    num_accepted_tokens: int
    draft_token_ids: list[int]
    block_ids: list[int]
    cache_salt: str
    num_loaded_tokens: int
    transfer: int | None
    cached_tokens: int | None
    num_deaths: int
    num_preemptions: int
    is_preempted: bool
    queued_ns: int
    first_row_ns: int | None
    kept_token_ids: bytes
    """int32 [n]"""
    num_block_keys: int
    """So many keys of its blocks were known; they are computed again."""
    prompt_logprobs: SavedPrompt | None


_NUM_COMPUTED_FIELDS = 3
"""The last ones, which are no attributes as they are."""
_PLAIN_FIELDS = SavedRequest.__struct_fields__[:-_NUM_COMPUTED_FIELDS]
_plain_values = attrgetter(*_PLAIN_FIELDS)


class RequestTable:
    """Numbers requests as they are met, live ones and those that have ended and are still referred to."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._numbers: dict[int, int] = {}

    def number(self, request: Request) -> int:
        """Of this very object: two of the same key are two."""
        number = self._numbers.setdefault(id(request), len(self._requests))
        if number == len(self._requests):
            self._requests.append(request)
        return number

    def numbers(self, requests: Iterable[Request]) -> list[int]:
        """Of each."""
        return [self.number(request) for request in requests]

    def saved(self) -> list[SavedRequest]:
        """All that have a number, in its order."""
        return [_saved(request) for request in self._requests]


def restore_requests(saved: Iterable[SavedRequest], rows: RowArrays[Request]) -> list[Request]:
    """By number. Those with a row are put into it."""
    requests = [_restored(request, rows) for request in saved]
    for request in requests:
        if request.row is not None:
            rows.requests[request.row] = request
    return requests


def saved_prompt(gathered: GatheredLogprobs | None) -> SavedPrompt | None:
    if gathered is None:
        return None
    pieces = [
        (p.logprobs.tobytes(), p.ranks.tobytes(), p.top_ids.tobytes(), p.top_logprobs.tobytes(), p.top_ids.shape[1])
        for p in gathered._pieces
    ]
    return SavedPrompt(gathered.num_known, pieces)


def restored_prompt(saved: SavedPrompt | None) -> GatheredLogprobs | None:
    if saved is None:
        return None
    gathered = GatheredLogprobs()
    for logprobs, ranks, top_ids, top_logprobs, width in saved.pieces:
        count = len(ranks) // 4
        gathered.add(
            Piece(
                np.frombuffer(logprobs, np.float32),
                np.frombuffer(ranks, np.int32),
                np.frombuffer(top_ids, np.int32).reshape(count, width),
                np.frombuffer(top_logprobs, np.float32).reshape(count, width),
            )
        )
    return gathered


def _saved(request: Request) -> SavedRequest:
    computed = (
        request.kept_token_ids.tobytes(),
        len(request.block_keys._keys),
        saved_prompt(request.prompt_logprobs),
    )
    return SavedRequest(*(*_plain_values(request), *computed))


def _restored(saved: SavedRequest, rows: RowArrays[Request]) -> Request:
    request = Request.__new__(Request)
    for name, value in zip(_PLAIN_FIELDS, _plain_values(saved), strict=True):
        setattr(request, name, value)
    request._rows = None if request.row is None else rows
    request.kept_token_ids = array("i", saved.kept_token_ids)
    request.block_keys = BlockKeys(rows.block_size, extra_keys(request.cache_salt))
    request.block_keys.upto(saved.num_block_keys, request.kept_token_ids)
    request.prompt_logprobs = restored_prompt(saved.prompt_logprobs)
    return request
