"""Who waits for what, in a snapshot: lines, grammars, deadlines, and what waiting is measured and weighed with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from ..mailbox.messages.grammar import GrammarFailed
from .grammars import Grammars
from .request import Rank, Request, RequestKey
from .snapshot_fields import put, take
from .snapshot_requests import RequestTable
from .trial import Trial
from .waiting_lines import HeapLines, _Line


class SavedLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of `HeapLines`."""

    heap: list[Rank]
    requests: list[tuple[Rank, int]]
    """Rank and number of each."""


class SavedGrammars(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`Grammars`."""

    fates: dict[str, GrammarFailed | None]
    waiting: dict[str, list[int]]
    """Grammar key -> numbers."""
    unlucky: dict[str, GrammarFailed]
    """By request."""


class SavedDeadlines(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`Deadlines`."""

    heap: list[tuple[int, RequestKey]]
    num_live: int


class SavedTenants(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`TenantCounters`: int64 arrays."""

    index: dict[str, int]
    tokens: bytes
    num_live: bytes
    free: list[int]


class SavedDrainRate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`DrainRate`."""

    now_ns: int
    is_queue: bool
    left: list[int]
    waited_ns: list[int]


def save_lines(lines: HeapLines, table: RequestTable) -> dict[str, SavedLine]:
    return {
        name: SavedLine(line._heap, [(rank, table.number(request)) for rank, request in line.requests.items()])
        for name, line in lines._lines.items()
    }


def restore_lines(saved: dict[str, SavedLine], lines: HeapLines, requests: Sequence[Request]) -> None:
    for name, saved_line in saved.items():
        line = lines._lines[name] = _Line()
        line._heap = saved_line.heap
        line.requests = {rank: requests[number] for rank, number in saved_line.requests}
        lines._places |= {request.key: (name, rank) for rank, request in line.requests.items()}


def save_grammars(grammars: Grammars, table: RequestTable) -> SavedGrammars:
    waiting = {key: table.numbers(requests.values()) for key, requests in grammars._waiting.items()}
    return take(SavedGrammars, grammars, waiting=waiting)


def restore_grammars(saved: SavedGrammars, grammars: Grammars, requests: Sequence[Request]) -> None:
    put(saved, grammars, without=("waiting",))
    for key, numbers in saved.waiting.items():
        grammars._waiting[key] = {requests[number].key: requests[number] for number in numbers}


def save_trial(trial: Trial) -> list[list[RequestKey]]:
    return list(trial.groups())


def restore_trial(saved: list[list[RequestKey]], trial: Trial) -> None:
    trial._groups = deque(dict.fromkeys(group) for group in saved)
