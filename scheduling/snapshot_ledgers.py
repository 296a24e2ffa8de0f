"""The books in a snapshot: ledgers of live requests and of ended ones, and who took which block and row."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from ..mailbox.messages.requests import PreemptionRecord, RequestLedger
from .ended_runs import EndedRun
from .holdings import Holding, Holdings
from .leak_ledger import LeakLedger
from .ledger import LedgerBook
from .live_ledger import LiveLedger, Phase
from .request import RequestKey
from .snapshot_fields import put, take
from .wait_clock import LINE_CAUSES, WaitCause, WaitClock


class SavedClock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`WaitClock`; the sums in the order of LINE_CAUSES."""

    now_ns: int
    cause: WaitCause
    sums: list[int]


class SavedLedger(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`LiveLedger`."""

    arrival_ns: int
    queued_ns: int
    since_ns: int
    sums: tuple[int, ...]
    coming: int
    line_entry: int
    has_place: bool
    is_passed: bool
    waited_ns: dict[WaitCause, int]
    prefill_ns: int
    decode_ns: int
    chunks: list[int]
    preemptions: list[PreemptionRecord]
    num_chunks: int
    num_preemptions: int
    num_start_tokens: int
    computed: list[tuple[int, int]]
    num_recomputed_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    phase: str
    """The value of a `Phase` or of a `WaitCause`, which differ."""


_plain_values = attrgetter(*SavedLedger.__struct_fields__[:-1])


class SavedDrafts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`DraftCounts`: int64 arrays."""

    drafts: bytes
    num_drafts: int
    accepted_at: bytes
    accepted: bytes


class SavedEnded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`EndedLedgers`."""

    by_request: dict[str, dict[int, RequestLedger]]
    num_ledgers: int


class SavedBook(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`LedgerBook`."""

    clock: SavedClock
    live: dict[RequestKey, SavedLedger]
    ended: SavedEnded
    drafts: SavedDrafts
    line: list[int]
    """Line entries that nobody has passed over yet, the first first."""
    num_in_line: int
    num_entries: int
    num_come: int


class SavedHoldings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`Holdings`: int64 arrays, and further holders."""

    runs: bytes
    marks: bytes
    shared: dict[int, list[Holding]]


class SavedLeaks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`LeakLedger`."""

    blocks: SavedHoldings
    rows: SavedHoldings
    ended: dict[int, EndedRun]
    loads: dict[RequestKey, int]


def save_book(book: LedgerBook) -> SavedBook:
    in_line = [(coming, entry) for coming, entry, ledger in book._line if ledger.line_entry == entry]
    return take(
        SavedBook,
        book,
        clock=take(SavedClock, book._clock, sums=list(book._clock._sums.values())),
        live={key: _saved_ledger(ledger) for key, ledger in book._live.items()},
        ended=take(SavedEnded, book._ended),
        drafts=take(SavedDrafts, book.drafts),
        line=[entry for _, entry in sorted(in_line)],
    )


def _saved_ledger(ledger: LiveLedger) -> SavedLedger:
    return SavedLedger(*(*_plain_values(ledger), ledger.phase.value))


def restore_book(saved: SavedBook, book: LedgerBook) -> None:
    put(saved, book, without=("clock", "live", "ended", "drafts", "line"))
    _restore_clock(saved.clock, book._clock)
    put(saved.ended, book._ended)
    put(saved.drafts, book.drafts)
    book._live = {key: _restored_ledger(ledger) for key, ledger in saved.live.items()}
    by_entry = {ledger.line_entry: ledger for ledger in book._live.values()}
    book._line = [(by_entry[entry].coming, entry, by_entry[entry]) for entry in saved.line]


def _restore_clock(saved: SavedClock, clock: WaitClock) -> None:
    put(saved, clock, without=("sums",))
    clock._sums = dict(zip(LINE_CAUSES, saved.sums, strict=True))


def _restored_ledger(saved: SavedLedger) -> LiveLedger:
    ledger = LiveLedger(saved.arrival_ns, saved.queued_ns)
    put(saved, ledger, without=("phase",))
    is_phase = saved.phase in [phase.value for phase in Phase]
    ledger.phase = Phase(saved.phase) if is_phase else WaitCause(saved.phase)
    return ledger


def save_leaks(leaks: LeakLedger) -> SavedLeaks:
    return take(
        SavedLeaks,
        leaks,
        blocks=take(SavedHoldings, leaks._blocks),
        rows=take(SavedHoldings, leaks._rows),
        ended=dict(leaks._ended._runs),
    )


def restore_leaks(saved: SavedLeaks, leaks: LeakLedger) -> None:
    holdings: list[tuple[SavedHoldings, Holdings]] = [(saved.blocks, leaks._blocks), (saved.rows, leaks._rows)]
    for saved_holdings, part in holdings:
        put(saved_holdings, part)
    leaks._ended._runs.update(saved.ended)
    leaks._loads = saved.loads
