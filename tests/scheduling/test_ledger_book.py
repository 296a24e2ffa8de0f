"""The book of ledgers against a twin that asks every request at every tick why it waits."""

from __future__ import annotations

from collections import Counter
from typing import cast, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from callboard.mailbox.messages.requests import Explanation, PreemptionRecord, RequestLedger
from callboard.scheduling.ledger import LedgerBook, PreemptionCause
from callboard.scheduling.live_ledger import MAX_RECORDS, LiveLedger
from callboard.scheduling.request import Request, RequestState
from callboard.scheduling.wait_clock import LINE_CAUSES, WaitCause
from callboard.tests.scheduling.fake_worker import make_limits
from callboard.tests.scheduling.ledger_twin import OWN_CAUSES, PlainRequest, TwinLedger, parts_ns

NUM_ROWS = 4
FINISHED = list(RequestState)[list(RequestState).index(RequestState.PREEMPTED) + 1 :]


def as_request(request: PlainRequest) -> Request:
    return cast(Request, request)


class LedgerMachine(RuleBasedStateMachine):
    """Whatever happens to requests, in whatever order: every ledger is the twin's, at every tick, to the nanosecond."""

    def __init__(self) -> None:
        super().__init__()
        self.book = LedgerBook(make_limits(max_num_seqs=NUM_ROWS, max_ledgers=10_000))
        self.now_ns = 0
        self.line_cause = "worker"
        self.live: dict[tuple[str, int], TwinLedger] = {}
        self.ended: dict[tuple[str, int], RequestLedger] = {}
        self.num_come = 0
        self.step = 0

    def those(self, *labels: str) -> list[TwinLedger]:
        return [twin for twin in self.live.values() if twin.label in labels]

    def pick(self, data: st.DataObject, *labels: str) -> TwinLedger:
        return data.draw(st.sampled_from(self.those(*labels)))

    @initialize(start_ns=st.integers(0, 10**12))
    def begin(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.book.advance(start_ns)

    @rule(elapsed_ns=st.integers(0, 10**10))
    def time_passes(self, elapsed_ns: int) -> None:
        self.now_ns += elapsed_ns
        self.book.advance(self.now_ns)
        for twin in self.live.values():
            twin.spent_ns[twin.reason(self.line_cause)] += elapsed_ns

    @rule(cause=st.sampled_from(LINE_CAUSES))
    def admission_stops(self, cause: WaitCause) -> None:
        self.line_cause = cause.value
        self.book.stop(cause)

    @rule(before_ns=st.integers(0, 10**9), choices=st.integers(1, 2), has_grammar=st.booleans())
    def come(self, before_ns: int, choices: int, has_grammar: bool) -> None:
        name = f"r{self.num_come}"
        for choice in range(choices):
            self.num_come += 1
            request = PlainRequest((name, choice), (0, self.now_ns - before_ns, self.num_come))
            twin = self.live[request.key] = TwinLedger(request, self.now_ns, self.num_come)
            twin.label = "grammar" if has_grammar else "line"
            self.book.come(as_request(request))
            if has_grammar:
                self.book.hold(as_request(request), WaitCause.GRAMMAR)

    @precondition(lambda self: self.those(*OWN_CAUSES))
    @rule(data=st.data(), is_newcomer=st.booleans())
    def line_up(self, data: st.DataObject, is_newcomer: bool) -> None:
        twin = self.pick(data, *OWN_CAUSES)
        self.book.line_up(as_request(twin.request), is_newcomer=is_newcomer)
        twin.label, twin.is_passed = "line", False
        if is_newcomer:
            self.num_come += 1
            twin.coming, twin.has_place = self.num_come, False

    @precondition(lambda self: self.those("line", "decode", "prefill"))
    @rule(data=st.data(), cause=st.sampled_from(OWN_CAUSES))
    def hold(self, data: st.DataObject, cause: str) -> None:
        twin = self.pick(data, "line", "decode", "prefill")
        self.book.hold(as_request(twin.request), WaitCause(cause))
        self.leave_row(twin)
        twin.label = cause

    @precondition(lambda self: self.those("line") and len(self.those("prefill", "decode")) < NUM_ROWS)
    @rule(data=st.data(), num_cached=st.integers(0, 6), is_tried=st.booleans())
    def start(self, data: st.DataObject, num_cached: int, is_tried: bool) -> None:
        twin = self.pick(data, "line")
        request = twin.request
        request.row = min(set(range(NUM_ROWS)) - {other.request.row for other in self.live.values()})
        request.num_computed_tokens = twin.start = num_cached
        if request.cached_tokens is None:
            request.cached_tokens = num_cached
        self.book.start(as_request(request), is_tried=is_tried)
        request.state = RequestState.RUNNING
        if not twin.has_place and not is_tried:
            for other in self.those("line"):
                other.is_passed |= other.coming < twin.coming
        twin.label, twin.has_place = "prefill", True

    @precondition(lambda self: self.those("prefill", "decode"))
    @rule(data=st.data(), num_tokens=st.integers(2, 6))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        twin = self.pick(data, "prefill", "decode")
        self.book.chunk(as_request(twin.request), num_tokens)
        twin.request.num_computed_tokens += num_tokens
        twin.chunks.append(num_tokens)

    @precondition(lambda self: self.those("prefill"))
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        twin = self.pick(data, "prefill")
        self.book.token(as_request(twin.request))
        self.book.token(as_request(twin.request))
        twin.request.num_output_tokens += 1
        twin.label = "decode"

    @precondition(lambda self: self.those("decode"))
    @rule(data=st.data(), num_drafts=st.integers(1, 3))
    def draft(self, data: st.DataObject, num_drafts: int) -> None:
        twins = data.draw(st.lists(st.sampled_from(self.those("decode")), min_size=1, unique_by=id))
        accepted = [data.draw(st.integers(0, num_drafts)) for _ in twins]
        rows = np.array([twin.request.row for twin in twins], np.int32)
        self.book.count_drafts(rows, np.full(len(rows), num_drafts, np.int32), np.array(accepted, np.int32))
        for twin, num_accepted in zip(twins, accepted, strict=True):
            twin.num_drafts += num_drafts
            twin.num_accepted += num_accepted

    @precondition(lambda self: self.those("prefill", "decode"))
    @rule(data=st.data(), cause=st.sampled_from(get_args(PreemptionCause)))
    def preempt(self, data: st.DataObject, cause: PreemptionCause) -> None:
        twin = self.pick(data, "prefill", "decode")
        self.step += 1
        self.book.preempt(as_request(twin.request), cause, self.step)
        twin.preemptions.append(PreemptionRecord(self.step, cause, twin.request.num_computed_tokens))
        self.leave_row(twin)
        twin.label, twin.is_passed, twin.request.state = "line", False, RequestState.PREEMPTED

    @precondition(lambda self: self.live)
    @rule(data=st.data(), state=st.sampled_from(FINISHED))
    def end(self, data: st.DataObject, state: RequestState) -> None:
        key = data.draw(st.sampled_from(sorted(self.live)))
        twin = self.live[key]
        self.book.end(as_request(twin.request), state)
        self.leave_row(twin)
        del self.live[key]
        twin.label, twin.request.state = "ended", state
        self.ended[key] = twin.told(self.line_cause, self.now_ns)

    def leave_row(self, twin: TwinLedger) -> None:
        request = twin.request
        if twin.label in ("prefill", "decode"):
            twin.times_computed.update(range(twin.start, request.num_computed_tokens))
        request.row, request.num_computed_tokens, request.state = None, 0, RequestState.WAITING

    @invariant()
    def every_ledger_is_the_twins(self) -> None:
        for name in {name for name, _ in (*self.live, *self.ended)}:
            told = {key: ledger for key, ledger in self.ended.items() if key[0] == name}
            live = {key: twin for key, twin in self.live.items() if key[0] == name}
            told |= {key: twin.told(self.line_cause, self.now_ns) for key, twin in live.items()}
            requests = [as_request(twin.request) for twin in live.values()]
            asked = self.book.explain(name, requests, self.now_ns)
            assert asked == tuple(told[key] for key in sorted(told))
            for ledger in asked:
                assert (
                    parts_ns(ledger)
                    == (self.now_ns if ledger.ended_ns is None else ledger.ended_ns) - ledger.arrival_ns
                )
        self.book.check_integrity(self.live)


LedgerMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestLedgers = LedgerMachine.TestCase


def begun(**changes: object) -> LedgerBook:
    book = LedgerBook(make_limits(**changes))
    book.advance(1000)
    book.stop(WaitCause.BUDGET)
    return book


def test_one_that_comes_back_after_a_preemption_passes_nobody_over() -> None:
    book = begun()
    first, second, third = (PlainRequest((name, 0), (0, 400, 1)) for name in "abc")
    for request in (first, second, third):
        book.come(as_request(request))
    book.hold(as_request(first), WaitCause.GRAMMAR)
    second.row = 0
    book.start(as_request(second))
    book.preempt(as_request(second), "blocks", 1)
    book.line_up(as_request(first))
    book.start(as_request(second))
    book.stop(WaitCause.SEQUENCES)
    assert book.explain("a", [as_request(first)], 1000)[0].waits_for == "sequences"
    third.row = 1
    book.start(as_request(third))
    assert book.explain("a", [as_request(first)], 1000)[0].waits_for == "priority"


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6))
def test_positions_that_were_computed_more_than_once_are_counted(runs: list[tuple[int, int]]) -> None:
    ledger = LiveLedger(0, 0)
    times = Counter[int]()
    for start, length in runs:
        ledger.num_start_tokens = start
        ledger.count_run(start + length)
        times.update(range(start, start + length))
    assert ledger.num_recomputed_tokens == sum(count - 1 for count in times.values() if count > 1)
    assert sum(behind - first for first, behind in ledger.computed) == len(times)


def test_drafts_count_for_the_request_that_has_the_row() -> None:
    book = begun()
    first, second = PlainRequest(("a", 0), (0, 400, 1), row=1), PlainRequest(("b", 0), (0, 400, 2), row=1)
    for request, num_drafts, num_accepted in ((first, 3, 2), (second, 4, 1)):
        book.come(as_request(request))
        book.start(as_request(request))
        rows, counts = np.array([1], np.int32), np.array([num_drafts], np.int32)
        book.count_drafts(rows, counts, np.array([num_accepted], np.int32))
        book.end(as_request(request), RequestState.STOPPED)
    told = [book.explain(name, [], 1000)[0] for name in "ab"]
    assert [(ledger.num_draft_tokens, ledger.num_accepted_tokens) for ledger in told] == [(3, 2), (4, 1)]


def test_a_question_may_come_later_than_the_last_step_and_changes_nothing() -> None:
    book = begun()
    request = as_request(PlainRequest(("a", 0), (0, 400, 1)))
    book.come(request)
    book.advance(1100)
    book.stop(WaitCause.BLOCKS)
    (late,) = book.explain("a", [request], 1350)
    assert (late.waiting.budget_ns, late.waiting.blocks_ns, late.waits_for) == (100, 250, "blocks")
    assert parts_ns(late) == 950
    assert book.explain("a", [request], 1350) == (late,)
    (soon,) = book.explain("a", [request], 0)
    assert (soon.waiting.blocks_ns, parts_ns(soon)) == (0, 700)
    assert book.explain("b", [], 1350) == ()


def test_only_the_first_chunks_and_preemptions_are_told() -> None:
    book = begun()
    plain = PlainRequest(("a", 0), (0, 400, 1), row=0)
    request = as_request(plain)
    book.come(request)
    for step in range(MAX_RECORDS + 1):
        book.start(request)
        book.chunk(request, step + 2)
        book.preempt(request, "blocks", step)
    (ledger,) = book.explain("a", [request], 1000)
    assert ledger.chunks == tuple(range(2, MAX_RECORDS + 2))
    assert [record.step for record in ledger.preemptions] == list(range(MAX_RECORDS))
    assert (ledger.num_chunks, ledger.num_preemptions) == (MAX_RECORDS + 1, MAX_RECORDS + 1)


@pytest.mark.parametrize(
    ("num_choices", "num_records", "num_told", "num_told_records"),
    [(1, 300, 1, 256), (4, 300, 4, 256), (50, 300, 50, 20), (128, 20, 128, 8), (3000, 9, 128, 8)],
)
def test_an_explanation_fits_a_message_whatever_it_is_about(
    num_choices: int, num_records: int, num_told: int, num_told_records: int
) -> None:
    """Of many choices the first are told, and fewer chunks and preemptions of each; how many there were is told too."""
    book = begun(max_ledgers=num_choices)
    book.advance(10**18)
    live = []
    for choice in range(num_choices):
        plain = PlainRequest(("a", choice), (0, 400, choice), row=0, num_prompt_tokens=1 << 20)
        request = as_request(plain)
        book.come(request)
        for step in range(num_records):
            book.start(request)
            book.chunk(request, 70_000 + step)
            book.preempt(request, "step_failed", 10**12 + step)
        if choice % 2:
            book.end(request, RequestState.LENGTH_CAPPED)
        else:
            live.append(request)
    told = book.explain("a", live, 2 * 10**18)
    assert [ledger.choice for ledger in told] == list(range(num_told))
    assert {(ledger.num_choices_left_out, ledger.num_chunks, ledger.num_preemptions) for ledger in told} == {
        (num_choices - num_told, num_records, num_records)
    }
    for ledger in told:
        assert ledger.chunks == tuple(range(70_000, 70_000 + num_told_records))
        assert [record.step - 10**12 for record in ledger.preemptions] == list(range(num_told_records))
    message = Explanation("question", 1, "a", 2 * 10**18, told)
    assert len(msgspec.msgpack.encode(message)) <= 64 * 1024


@pytest.mark.parametrize("max_ledgers", [0, 1, 4, 5])
def test_ended_ledgers_are_bounded_and_choices_of_a_request_go_together(max_ledgers: int) -> None:
    book = begun(max_ledgers=max_ledgers)
    for index in range(10):
        for choice in range(2):
            request = as_request(PlainRequest((f"r{index}", choice), (0, 400, 1)))
            book.come(request)
            book.end(request, RequestState.ABORTED)
    kept = [len(book.explain(f"r{index}", [], 1000)) for index in range(10)]
    num_pairs = {0: 0, 1: 1, 4: 2, 5: 2}[max_ledgers]
    assert kept == [0] * (10 - num_pairs) + [2] * num_pairs


def test_requests_that_leave_the_line_without_a_row_leave_nothing_behind() -> None:
    book = begun(max_ledgers=0)
    for index in range(10_000):
        request = as_request(PlainRequest((f"r{index}", 0), (0, 400, 1)))
        book.come(request)
        book.end(request, RequestState.ABORTED)
    assert len(book._line) < 200


def test_a_step_in_which_nothing_changes_touches_no_ledger() -> None:
    book = begun(max_num_seqs=1000)
    for index in range(1000):
        request = as_request(PlainRequest((f"r{index}", 0), (0, 400, 1), row=index))
        book.come(request)
        if index % 2:
            book.start(request)
    before = [ledger.since_ns for ledger in book._live.values()]
    for now_ns in range(1001, 1100):
        book.advance(now_ns)
        book.stop(WaitCause.SEQUENCES)
    assert [ledger.since_ns for ledger in book._live.values()] == before
