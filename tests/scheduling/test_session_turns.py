"""Streaming sessions at the scheduler: each turn is a request whose prompt is all that stands before its output."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from callboard.mailbox.messages.admission import AddInput, Admit, Stop, TokenDeltas
from callboard.mailbox.messages.grammar import GrammarReady
from callboard.mailbox.messages.requests import Abort, Usage
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.mailbox.messages.transfers import BlocksLoaded
from callboard.scheduling.events import Event, WorkerAttached
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_model import next_token
from callboard.tests.scheduling.fake_worker import ints, make_admit, make_limits

PROMPT = [1, 2, 3, 4, 5]
INPUT = [6, 7]


class Worker:
    """Tokens by row; what it samples depends on all before."""

    def __init__(self) -> None:
        self._known: dict[int, list[int]] = {}

    def run(self, plan: StepPlan) -> StepResult:
        for new in plan.new_rows:
            self._known[new.row] = ints(new.token_ids)
        runs, positions, token_ids = [], [], []
        scheduled = zip(
            ints(plan.rows),
            np.frombuffer(plan.runs, "<i8").tolist(),
            ints(plan.starts),
            ints(plan.num_tokens),
            strict=True,
        )
        for (row, run, start, num_tokens), samples in zip(scheduled, plan.samples, strict=True):
            known = self._known[row]
            assert start + num_tokens <= len(known)
            if samples:
                runs.append(run)
                positions.append(start + num_tokens)
                token_ids.append(next_token(known[: start + num_tokens], 0))
                del known[start + num_tokens :]
                known.append(token_ids[-1])
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=np.array(runs, "<i8").tobytes(),
            positions=np.array(positions, "<i4").tobytes(),
            token_ids=np.array(token_ids, "<i4").tobytes(),
            start_ns=0,
            end_ns=0,
        )


class Session:
    """A scheduler with a worker and the session `s`; what the tokenizer is told, in rows."""

    def __init__(self, **limits: object) -> None:
        self.limits = make_limits(**{"pipeline_depth": 1, "block_size": 2} | limits)
        self.scheduler = Scheduler(self.limits)
        self.worker = Worker()
        self.plans: list[StepPlan] = []
        self.now_ns = 0
        self.told: list[TokenDeltas] = []
        self.step(WorkerAttached(1))

    def step(self, *events: Event, tells: bool = True) -> None:
        """All plans that can be made now; what is to be said is said."""
        self.now_ns += 1
        plan = self.scheduler.step(self.now_ns, events)
        while plan is not None:
            self.plans.append(plan)
            plan = self.scheduler.step(self.now_ns, ())
        if not tells:
            return
        self.told += self.scheduler.collect().deltas.values()
        self.scheduler.check_integrity()

    def run(self, *events: Event, num_steps: int = 100) -> None:
        """Until nothing can run, or so many results are in."""
        self.step(*events)
        while self.plans and num_steps:
            result = self.worker.run(self.plans.pop(0))
            num_steps -= 1
            self.step(result)

    def take(self) -> tuple[int, list[int], list[str], list[str], Usage | None]:
        """(position of the first, ids, pauses, finishes, usage of the last mark) since the last call, without a gap."""
        told, self.told = self.told, []
        ids: list[int] = []
        pauses: list[str] = []
        finishes: list[str] = []
        usage = None
        for deltas in told:
            assert deltas.request_ids == ["s"]
            assert deltas.positions[0] == told[0].positions[0] + len(ids), "no gap, nothing twice"
            ids += deltas.token_ids[0]
            for marks, kinds in ((deltas.pauses, pauses), (deltas.finishes, finishes)):
                if 0 in marks:
                    kinds.append(marks[0].reason)
                    usage = marks[0].usage
        return told[0].positions[0] if told else -1, ids, pauses, finishes, usage


def admit_session(max_tokens: int = 4, **changes: object) -> Admit:
    return make_admit("s", PROMPT, max_tokens=max_tokens, ignore_eos=True, is_session=True, **changes)


def output_behind(context: Sequence[int], count: int) -> list[int]:
    known = list(context)
    for _ in range(count):
        known.append(next_token(known, 0))
    return known[len(context) :]


FIRST = output_behind(PROMPT, 4)
SECOND = output_behind([*PROMPT, *FIRST, *INPUT], 4)


@pytest.mark.parametrize("depth", [1, 2])
def test_turns(depth: int) -> None:
    session = Session(pipeline_depth=depth)
    session.run(admit_session())
    assert session.take() == (0, FIRST, ["length"], [], Usage(5, 4, 0))
    assert session.scheduler.statistics().num_free_blocks == session.limits.num_blocks
    session.run(AddInput("s", 0, 1, INPUT, True))
    # 8 of the 9 tokens before were computed: 4 full blocks
    assert session.take() == (4, SECOND, [], ["length"], Usage(11, 4, 8))
    assert session.scheduler.statistics().num_finished == 1


def resume(attempt: int, first_output_index: int, output: list[int], **changes: object) -> Admit:
    """As the tokenizer sends it in the second turn."""
    prompt = [*PROMPT, *FIRST, *INPUT] if first_output_index else PROMPT
    admit = make_admit("s", prompt, max_tokens=4, ignore_eos=True, attempt=attempt)
    return msgspec.structs.replace(admit, first_output_index=first_output_index, output_token_ids=output, **changes)


@pytest.mark.parametrize("num_known", [0, 1, 2, 3])
@pytest.mark.parametrize("is_session", [True, False])
def test_resumed_twice_in_its_second_turn(num_known: int, is_session: bool) -> None:
    """Behind the last input it is no session any more, but its output does not begin with 0."""
    session = Session()
    session.run(resume(2, 4, [], is_session=is_session), num_steps=3)
    assert session.take()[:2] == (4, SECOND[:3])
    session.run(resume(3, 4, SECOND[:num_known], is_session=is_session))
    position, ids, pauses, finishes, usage = session.take()
    assert (position, ids) == (4 + num_known, SECOND[num_known:])
    assert (pauses, finishes) == ((["length"], []) if is_session else ([], ["length"]))
    assert usage is not None and usage.completion_tokens == 4


def test_resumed_while_it_is_paused_it_says_nothing_and_takes_input() -> None:
    session = Session()
    session.run(resume(2, 0, FIRST, is_session=True, is_paused=True))
    assert session.take() == (-1, [], [], [], None)
    session.run(AddInput("s", 0, 2, INPUT))
    assert session.take()[:3] == (4, SECOND, ["length"])


def test_resumed_with_all_of_a_turn_but_its_end_it_says_that_alone() -> None:
    session = Session()
    session.run(resume(2, 0, FIRST, is_session=True))
    assert session.take()[:4] == (4, [], ["length"], [])


@pytest.mark.parametrize("when", ["running", "paused", "paused and not told"])
def test_a_stop_string_cuts_the_turn_and_its_mark_is_told_once(when: str) -> None:
    session = Session()
    stop = Stop("s", 0, 1, 1)
    if when == "paused and not told":
        session.step(admit_session())
        while session.plans:
            session.step(session.worker.run(session.plans.pop(0)), tells=False)
        session.step(stop)
        assert session.take()[:4] == (2, [], ["stop"], [])
    else:
        session.run(admit_session(), num_steps=3 if when == "running" else 100)
        session.take()
        session.run(stop)
        assert [deltas.pauses[0].reason for deltas in session.told] == (["stop"] if when == "running" else [])
        session.told.clear()
    session.run(AddInput("s", 0, 1, INPUT))
    second = output_behind([*PROMPT, *FIRST[:2], *INPUT], 4)
    assert session.take()[:3] == (2, second, ["length"])


def test_abort_while_it_is_paused() -> None:
    session = Session()
    session.run(admit_session())
    session.run(Abort("s", 1, "gone"))
    assert session.scheduler.statistics().num_finished == 1
    session.run(AddInput("s", 0, 1, INPUT))
    assert session.scheduler.statistics().num_waiting == 0


def test_a_deadline_while_it_is_paused() -> None:
    session = Session()
    session.run(msgspec.structs.replace(admit_session(), deadline_ns=1_000_000))
    session.take()
    assert session.scheduler.next_deadline_ns() == 1_000_000
    session.now_ns = 1_000_000
    session.run()
    assert session.take()[1:4] == ([], [], ["timeout"])


def test_paused_sessions_do_not_fill_the_queue() -> None:
    session = Session(max_queued_requests=1, max_num_seqs=1)
    session.run(admit_session())
    session.told.clear()
    statistics = session.scheduler.statistics()
    assert (statistics.num_waiting, statistics.num_running, statistics.num_queued_room) == (0, 0, 2)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_stop_string_ends_a_turn_that_waits_with_or_for_loaded_blocks(is_loaded: bool) -> None:
    """They are given back, those of a transfer under way when it is over; the next turn is computed."""
    session = Session(prefix_caching=False)
    session.step(resume(2, 0, FIRST[:2], is_session=True, num_remote_tokens=4))
    assert session.scheduler.statistics().num_free_blocks == session.limits.num_blocks - 2
    events: list[Event] = [Stop("s", 0, 2, 1), BlocksLoaded(1, 4)]
    session.run(*(reversed(events) if is_loaded else events))
    statistics = session.scheduler.statistics()
    assert (statistics.num_paused, statistics.num_free_blocks) == (1, session.limits.num_blocks)
    session.take()
    session.run(AddInput("s", 0, 2, INPUT))
    second = output_behind([*PROMPT, *FIRST[:2], *INPUT], 4)
    assert session.take()[:3] == (2, second, ["length"])


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_session_that_is_resumed_at_a_pause_waits_for_its_grammar_in_the_next_turn(is_paused: bool) -> None:
    """Paused, or with all of its turn but the end: in both cases it has not been in line."""
    session = Session()
    session.run(resume(2, 0, FIRST, is_session=True, is_paused=is_paused, grammar_key="g"))
    session.take()
    session.run(AddInput("s", 0, 2, INPUT))
    assert session.scheduler.explain("s")[0].state == "waiting_for_grammar"
    session.run(GrammarReady("g"))
    assert session.take()[:3] == (4, SECOND, ["length"])


@pytest.mark.parametrize("whose", ["the session's tenant", "somebody else"])
def test_a_paused_session_saves_no_claim_up(whose: str) -> None:
    """Neither for its tenant nor for one that comes new: who asks for nothing is not the one to be caught up with."""
    session = Session(policy="fair", fair_aging_max_tokens=0, max_num_seqs=1)
    session.run(admit_session(max_tokens=1, tenant="sleeper"))
    request = make_admit("r", PROMPT, max_tokens=20, ignore_eos=True, tenant="busy")
    session.run(*(msgspec.structs.replace(request, request_id=f"r{n}") for n in range(6)), num_steps=50)
    tenant = "sleeper" if whose == "the session's tenant" else "new"
    new_ones = [msgspec.structs.replace(request, request_id=f"n{n}", tenant=tenant) for n in range(6)]
    admitted = []
    session.step(*new_ones)
    while session.plans:
        plan = session.plans.pop(0)
        admitted += [new.request_id for new in plan.new_rows]
        session.step(session.worker.run(plan))
    assert any(name.startswith("r") for name in admitted[:3]), f"the busy tenant waits for {admitted}"
