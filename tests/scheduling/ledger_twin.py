"""A twin of the book of ledgers that does everything the slow way: it asks each request at each tick why it waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from callboard.mailbox.messages.requests import PreemptionRecord, RequestLedger, WaitTime
from callboard.scheduling.request import RequestState

OWN_CAUSES = ("grammar", "adapter", "remote_kv", "input")


@dataclass(eq=False)
class PlainRequest:
    """What a ledger reads of a request."""

    key: tuple[str, int]
    rank: tuple[int, int, int]
    num_prompt_tokens: int = 5
    num_output_tokens: int = 0
    cached_tokens: int | None = None
    state: RequestState = RequestState.WAITING
    row: int | None = None
    num_computed_tokens: int = 0


@dataclass
class TwinLedger:
    """One request: a label for what it does now, and the sum of what it did."""

    request: PlainRequest
    queued_ns: int
    coming: int
    label: str = "line"
    is_passed: bool = False
    has_place: bool = False
    spent_ns: Counter[str] = field(default_factory=Counter)
    start: int = 0
    times_computed: Counter[int] = field(default_factory=Counter)
    chunks: list[int] = field(default_factory=list)
    preemptions: list[PreemptionRecord] = field(default_factory=list)
    num_drafts: int = 0
    num_accepted: int = 0

    def reason(self, line_cause: str) -> str:
        if self.label == "line" and self.is_passed and line_cause != "worker":
            return "priority"
        return line_cause if self.label == "line" else self.label

    def told(self, line_cause: str, now_ns: int) -> RequestLedger:
        request, spent = self.request, self.spent_ns
        computed = Counter(self.times_computed)
        if self.label in ("prefill", "decode"):
            computed.update(range(self.start, request.num_computed_tokens))
        is_ended = self.label == "ended"
        waits = self.label not in ("prefill", "decode", "ended")
        return RequestLedger(
            choice=request.key[1],
            state=request.state.value,
            arrival_ns=request.rank[1],
            queued_ns=self.queued_ns,
            ended_ns=now_ns if is_ended else None,
            waiting=WaitTime(
                budget_ns=spent["budget"],
                sequences_ns=spent["sequences"],
                blocks_ns=spent["blocks"],
                grammar_ns=spent["grammar"],
                adapter_ns=spent["adapter"],
                remote_kv_ns=spent["remote_kv"],
                input_ns=spent["input"],
                priority_ns=spent["priority"],
                worker_ns=spent["worker"],
            ),
            prefill_ns=spent["prefill"],
            decode_ns=spent["decode"],
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            num_cached_tokens=request.cached_tokens or 0,
            chunks=tuple(self.chunks),
            preemptions=tuple(self.preemptions),
            num_recomputed_tokens=sum(times - 1 for times in computed.values() if times > 1),
            num_draft_tokens=self.num_drafts,
            num_accepted_tokens=self.num_accepted,
            num_chunks=len(self.chunks),
            num_preemptions=len(self.preemptions),
            waits_for=self.reason(line_cause) if waits else "",
        )


def parts_ns(ledger: RequestLedger) -> int:
    """Everything that a ledger accounts for, from the arrival on."""
    waiting = ledger.waiting
    waits = sum(getattr(waiting, name) for name in waiting.__struct_fields__)
    return ledger.queued_ns - ledger.arrival_ns + waits + ledger.prefill_ns + ledger.decode_ns
