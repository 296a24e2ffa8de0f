"""Where the time of one live request went so far.

A request is in one phase at any time. Each change of phase settles the time since the last one, so all parts together
are exactly the time from its coming, whatever happened to it.
"""

from __future__ import annotations

from enum import Enum

from ..mailbox.messages.requests import PreemptionRecord, RequestLedger, WaitTime
from .request import Request, RequestState
from .wait_clock import LINE_CAUSES, WaitCause, WaitClock

MAX_RECORDS = 256
"""Chunks, and preemptions, that a ledger tells one by one: its first."""


class Phase(Enum):
    """What a request's time is spent on, where it is not a cause of its own to wait."""

    LINE = "line"
    """It could be admitted, and waits for its turn."""
    PREFILL = "prefill"
    """It has a row, and its run no token yet."""
    DECODE = "decode"


class LiveLedger:
    """Mutable; owned by the `LedgerBook`, which calls it before the request itself changes."""

    __slots__ = (
        "arrival_ns",
        "chunks",
        "coming",
        "computed",
        "decode_ns",
        "has_place",
        "is_passed",
        "line_entry",
        "num_accepted_tokens",
        "num_chunks",
        "num_draft_tokens",
        "num_preemptions",
        "num_recomputed_tokens",
        "num_start_tokens",
        "phase",
        "preemptions",
        "prefill_ns",
        "queued_ns",
        "since_ns",
        "sums",
        "waited_ns",
    )

    def __init__(self, arrival_ns: int, now_ns: int) -> None:
        self.arrival_ns = arrival_ns
        self.queued_ns = self.since_ns = now_ns
        self.phase: Phase | WaitCause = Phase.LINE
        self.sums: tuple[int, ...] = ()
        """Of the clock, at `since_ns`; only while it is in line."""
        self.coming = 0
        """Its place in the order of coming."""
        self.line_entry = 0
        """Numbers its present time in line; 0 while it is not in line."""
        self.has_place = False
        """It has been admitted, and is not a newcomer since."""
        self.is_passed = False
        """In line: a request that came later has been admitted since it stands there."""
        self.waited_ns = dict.fromkeys(WaitCause, 0)
        self.prefill_ns = self.decode_ns = 0
        self.chunks: list[int] = []
        self.preemptions: list[PreemptionRecord] = []
        self.num_chunks = self.num_preemptions = 0
        """With those that are not kept one by one."""
        self.num_start_tokens = 0
        """Positions that were found in the cache, or loaded, when its run began."""
        self.computed: list[tuple[int, int]] = []
        """Positions that its earlier runs computed: (first, behind the last), apart from each other, in order."""
        self.num_recomputed_tokens = 0
        self.num_draft_tokens = self.num_accepted_tokens = 0

    @property
    def is_running(self) -> bool:
        """It has a row."""
        return self.phase is Phase.PREFILL or self.phase is Phase.DECODE

    def settle(self, clock: WaitClock, now_ns: int) -> None:
        """Account for the time up to `now_ns`; the phase goes on."""
        elapsed_ns = now_ns - self.since_ns
        if self.phase is Phase.PREFILL:
            self.prefill_ns += elapsed_ns
        elif self.phase is Phase.DECODE:
            self.decode_ns += elapsed_ns
        elif self.phase is Phase.LINE:
            sums = clock.sums(now_ns)
            for cause, before_ns, after_ns in zip(LINE_CAUSES, self.sums, sums, strict=True):
                self.waited_ns[self._told(cause)] += after_ns - before_ns
            self.sums = sums
        else:
            self.waited_ns[self.phase] += elapsed_ns
        self.since_ns = now_ns

    def chunk(self, num_tokens: int) -> None:
        """A plan computes a chunk of it."""
        self.num_chunks += 1
        if len(self.chunks) < MAX_RECORDS:
            self.chunks.append(num_tokens)

    def preempt(self, step: int, cause: str, num_lost_tokens: int) -> None:
        """It lost its row."""
        self.num_preemptions += 1
        if len(self.preemptions) < MAX_RECORDS:
            self.preemptions.append(PreemptionRecord(step, cause, num_lost_tokens))

    def count_run(self, num_computed_tokens: int) -> None:
        """The run that computed positions up to here is over, or is looked at."""
        if num_computed_tokens == self.num_start_tokens:
            return
        begin, end = self.num_start_tokens, num_computed_tokens
        apart = []
        for first, behind in self.computed:
            self.num_recomputed_tokens += max(0, min(behind, num_computed_tokens) - max(first, self.num_start_tokens))
            if behind < begin or first > end:
                apart.append((first, behind))
            else:
                begin, end = min(first, begin), max(behind, end)
        self.computed = sorted([*apart, (begin, end)])

    def told(self, request: Request, state: RequestState, line_cause: WaitCause | None) -> RequestLedger:
        """The ledger as it is settled now. `line_cause`: None if it has ended."""
        return RequestLedger(
            choice=request.key[1],
            state=state.value,
            arrival_ns=self.arrival_ns,
            queued_ns=self.queued_ns,
            ended_ns=self.since_ns if line_cause is None else None,
            waiting=WaitTime(**{f"{cause.value}_ns": ns for cause, ns in self.waited_ns.items()}),
            prefill_ns=self.prefill_ns,
            decode_ns=self.decode_ns,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            num_cached_tokens=request.cached_tokens or 0,
            chunks=tuple(self.chunks),
            preemptions=tuple(self.preemptions),
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            waits_for="" if line_cause is None else self._reason(line_cause),
            num_chunks=self.num_chunks,
            num_preemptions=self.num_preemptions,
        )

    def _told(self, cause: WaitCause) -> WaitCause:
        """As what time in line under the line's `cause` counts."""
        return WaitCause.PRIORITY if self.is_passed and cause is not WaitCause.WORKER else cause

    def _reason(self, cause: WaitCause) -> str:
        if isinstance(self.phase, WaitCause):
            return self.phase.value
        return self._told(cause).value if self.phase is Phase.LINE else ""
