"""The book of ledgers: where each request's time went, live and for a while after its end.

Each hook is called before the move that it names, with the clock advanced to the step's `now_ns`; only `come` and
`start` are called behind it. What a hook costs follows what happens to that request: a step in which nothing comes,
goes, or computes a chunk costs `advance` and `stop`.

*Priority.* Who is in line waits for the cause for which admission stopped, until a request that came later is admitted:
from then on the place that it waits for has gone to somebody else, and its time in line is `priority`, but for that
without a worker. One that comes back after a preemption passes nobody over, for it had its place before, nor do the
suspects of a trial. Whoever is passed over is found in a heap by order of coming, and marked once for each time that
it is in line.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from heapq import heapify, heappop, heappush
from typing import Literal

from msgspec.structs import replace

from ..mailbox.messages.requests import RequestLedger
from .draft_counts import DraftCounts
from .ended_ledgers import EndedLedgers
from .limits import SchedulerLimits
from .live_ledger import LiveLedger, Phase
from .request import Request, RequestKey, RequestState
from .row_arrays import Int32s, RowIndexes
from .wait_clock import LINE_CAUSES, WaitCause, WaitClock

PreemptionCause = Literal["blocks", "worker", "step_failed", "trial", "resume", "grammar"]
MAX_CHOICES = 128
"""Choices of a request that are told in one answer."""
MAX_EXPLAINED_RECORDS = 1024
"""Chunks, and preemptions, that are told in one answer, shared out to its choices: with all else it is below 64 KiB."""
_MIN_STALE = 64
"""Entries of requests that left the line, beyond as many as stand in it, that are not worth a sweep."""


class LedgerBook:
    """One for each scheduler."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._clock = WaitClock()
        self._live: dict[RequestKey, LiveLedger] = {}
        self._ended = EndedLedgers(limits.max_ledgers)
        self.drafts = DraftCounts(limits.max_num_seqs)
        self._line: list[tuple[int, int, LiveLedger]] = []
        """A heap of (coming, line entry, ledger); stale where the ledger has another entry by now."""
        self._num_in_line = 0
        self._num_entries = 0
        self._num_come = 0

    # Every step

    def advance(self, now_ns: int) -> None:
        """A step begins; before its events."""
        self._clock.advance(now_ns)

    def stop(self, cause: WaitCause) -> None:
        """Admission stopped for this of LINE_CAUSES, and the line stands still until it is tried again.

        BUDGET if it did not stop: whoever comes now waits for the next step. WORKER while there is none, while
        requests are on trial, and from a failed step to the next plan. Not called in a step that may not plan, for its
        pipeline is full.
        """
        assert cause in LINE_CAUSES, f"{cause} is no cause for a whole line"
        self._clock.cause = cause

    # What happens to a request

    def come(self, request: Request) -> None:
        """A new request is in line."""
        ledger = self._live[request.key] = LiveLedger(request.rank[1], self._clock.now_ns)
        self._number(ledger)
        self._enter_line(ledger)

    def hold(self, request: Request, cause: WaitCause) -> None:
        """It leaves its row (INPUT), or the line (REMOTE_KV, ADAPTER, GRAMMAR), for a cause of its own."""
        ledger = self._leave(request)
        ledger.phase = cause

    def line_up(self, request: Request, *, is_newcomer: bool = False) -> None:
        """The cause of its own is gone: it is in line at its place, or as a newcomer (a session that got input)."""
        ledger = self._leave(request)
        if is_newcomer:
            self._number(ledger)
            ledger.has_place = False
        self._enter_line(ledger)

    def start(self, request: Request, *, is_tried: bool = False) -> None:
        """It has taken a row, and computed nothing but what it found, or was loaded. `is_tried`: in a trial."""
        ledger = self._leave(request)
        ledger.phase = Phase.PREFILL
        ledger.num_start_tokens = request.num_computed_tokens
        if not ledger.has_place and not is_tried:
            self._pass_over(ledger.coming)
        ledger.has_place = True

    def token(self, request: Request) -> None:
        """A token of its run came; to be called for the first one, others change nothing."""
        ledger = self._live[request.key]
        if ledger.phase is Phase.PREFILL:
            ledger.settle(self._clock, self._clock.now_ns)
            ledger.phase = Phase.DECODE

    def chunk(self, request: Request, num_tokens: int) -> None:
        """A plan computes positions of it, in a step before those that compute its last known token alone."""
        self._live[request.key].chunk(num_tokens)

    def count_drafts(self, rows: RowIndexes, num_drafts: Int32s, num_accepted: Int32s) -> None:
        """int32 [n] each: what a result says of the drafts of rows whose runs go on."""
        self.drafts.add(rows, num_drafts, num_accepted)

    def preempt(self, request: Request, cause: PreemptionCause, step: int) -> None:
        """It loses its row and is in line; `step` is the next to be planned."""
        ledger = self._leave(request)
        ledger.preempt(step, cause, request.num_computed_tokens)
        self._enter_line(ledger)

    def end(self, request: Request, state: RequestState) -> None:
        """It is finished, as `state`, running or waiting."""
        ledger = self._leave(request)
        del self._live[request.key]
        self._ended.add(request.key[0], ledger.told(request, state, None))

    # Questions

    def explain(self, request_id: str, live: Iterable[Request], now_ns: int) -> tuple[RequestLedger, ...]:
        """The choices of a request that are known, in order; `live` are those that have not ended. Changes nothing.

        `now_ns` may be later than the last step. No more than a message holds: of many choices the first MAX_CHOICES,
        with fewer of their records.
        """
        now_ns = max(now_ns, self._clock.now_ns)
        ended, requests = self._ended.of_request(request_id), {request.key[1]: request for request in live}
        known = sorted(ended.keys() | requests.keys())
        told = known[:MAX_CHOICES]
        most = MAX_EXPLAINED_RECORDS // max(1, len(told))
        ledgers = (self._told(requests[choice], now_ns) if choice in requests else ended[choice] for choice in told)
        return tuple(
            replace(
                ledger,
                chunks=ledger.chunks[:most],
                preemptions=ledger.preemptions[:most],
                num_choices_left_out=len(known) - len(told),
            )
            for ledger in ledgers
        )

    def _told(self, request: Request, now_ns: int) -> RequestLedger:
        ledger = copy(self._live[request.key])
        ledger.waited_ns = dict(ledger.waited_ns)
        ledger.settle(self._clock, now_ns)
        if ledger.is_running:
            self._count_run(ledger, request, self.drafts.of_row(self._row(request)))
        return ledger.told(request, request.state, self._clock.cause)

    def check_integrity(self, live: Iterable[RequestKey]) -> None:
        """Assert that exactly the live requests have a ledger that goes on."""
        assert self._live.keys() == set(live), "live requests and their ledgers differ"
        num_in_line = sum(ledger.phase is Phase.LINE for ledger in self._live.values())
        assert num_in_line == self._num_in_line, f"{num_in_line} ledgers are in line, {self._num_in_line} counted"

    # Moves

    def _leave(self, request: Request) -> LiveLedger:
        """Settle the present phase; the caller sets the next one."""
        ledger = self._live[request.key]
        ledger.settle(self._clock, self._clock.now_ns)
        if ledger.is_running:
            self._count_run(ledger, request, self.drafts.take(self._row(request)))
        elif ledger.phase is Phase.LINE:
            self._num_in_line -= 1
            ledger.line_entry = 0
        return ledger

    @staticmethod
    def _row(request: Request) -> int:
        assert request.row is not None, f"{request.key} runs without a row"
        return request.row

    @staticmethod
    def _count_run(ledger: LiveLedger, request: Request, drafts: tuple[int, int]) -> None:
        ledger.count_run(request.num_computed_tokens)
        ledger.num_draft_tokens += drafts[0]
        ledger.num_accepted_tokens += drafts[1]

    def _number(self, ledger: LiveLedger) -> None:
        self._num_come += 1
        ledger.coming = self._num_come

    def _enter_line(self, ledger: LiveLedger) -> None:
        ledger.phase, ledger.is_passed = Phase.LINE, False
        ledger.sums = self._clock.sums(self._clock.now_ns)
        self._num_entries += 1
        ledger.line_entry = self._num_entries
        if len(self._line) > 2 * self._num_in_line + _MIN_STALE:
            self._line = [entry for entry in self._line if entry[2].line_entry == entry[1]]
            heapify(self._line)
        heappush(self._line, (ledger.coming, ledger.line_entry, ledger))
        self._num_in_line += 1

    def _pass_over(self, coming: int) -> None:
        while self._line and self._line[0][0] < coming:
            _, entry, ledger = heappop(self._line)
            if ledger.line_entry == entry:
                ledger.settle(self._clock, self._clock.now_ns)
                ledger.is_passed = True
