"""Where the scheduler says that a request's time went: planted causes of waiting, sums to the nanosecond, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from callboard.mailbox.messages.admission import AddInput, Admit
from callboard.mailbox.messages.drafts import Drafts
from callboard.mailbox.messages.grammar import GrammarReady
from callboard.mailbox.messages.requests import Abort, PreemptionRecord, WaitTime
from callboard.mailbox.messages.steps import StepPlan
from callboard.mailbox.messages.transfers import BlocksLoaded
from callboard.scheduling.events import WorkerAttached, WorkerGone
from callboard.scheduling.ledger import LedgerBook
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.choices import SeededChoices, one_of
from callboard.tests.scheduling.fake_rows import ints
from callboard.tests.scheduling.fake_worker import make_admit
from callboard.tests.scheduling.fake_worker import make_limits as usual_limits
from callboard.tests.scheduling.ledger_twin import parts_ns
from callboard.tests.scheduling.stage import Stage
from callboard.tests.scheduling.twin_runs import TRANSITIONS_A_WORLD
from callboard.tests.scheduling.twin_transitions import TRANSITIONS, choose_limits
from callboard.tests.scheduling.twin_world import World


def make_limits(**changes: object) -> SchedulerLimits:
    """Depth 1, and nothing is found in the cache."""
    return usual_limits(**({"pipeline_depth": 1, "block_size": 4, "prefix_caching": False} | changes))


def ask(name: str, num_tokens: int, max_tokens: int, **changes: object) -> Admit:
    return make_admit(
        name, [1 + index % 5 for index in range(num_tokens)], max_tokens=max_tokens, ignore_eos=True, **changes
    )


# Causes of waiting. Each returns the stage, with the request "v" past its wait, and how long that was -----------------


def budget_goes_to_a_long_prompt() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits(max_num_batched_tokens=16))
    stage.at(1000, ask("long", 48, 1), ask("v", 4, 1))
    for now_ns in (2000, 3000):
        stage.end_step(now_ns)
        assert stage.ledger("v").waits_for == "budget"
    stage.end_step(4000)
    return stage, WaitTime(budget_ns=3000)


def a_step_is_under_way() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits())
    stage.at(1000, ask("a", 4, 3))
    stage.at(1500, ask("v", 4, 1))
    assert stage.ledger("v").waits_for == "budget"
    stage.end_step(2000)
    return stage, WaitTime(budget_ns=500)


def all_rows_are_taken() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits(max_num_seqs=1))
    stage.at(1000, ask("a", 4, 2), ask("v", 4, 1))
    stage.end_step(2000)
    assert stage.ledger("v").waits_for == "sequences"
    stage.end_step(3000)
    return stage, WaitTime(sequences_ns=2000)


def blocks_are_short() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits(num_blocks=4))
    stage.at(1000, ask("a", 12, 2), ask("v", 8, 1))
    stage.end_step(2000)
    assert stage.ledger("v").waits_for == "blocks"
    stage.end_step(3000)
    return stage, WaitTime(blocks_ns=2000)


def the_watermark_keeps_blocks_free() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits(num_blocks=4, watermark=0.5))
    stage.at(1000, ask("a", 4, 1), ask("v", 8, 1))
    assert stage.ledger("v").waits_for == "blocks"
    stage.end_step(2000)
    return stage, WaitTime(blocks_ns=1000)


def the_whole_prompt_has_no_room() -> tuple[Stage, WaitTime]:
    limits = make_limits(num_blocks=4, admission="whole_prompt", long_prefill_token_threshold=4)
    stage = Stage(limits)
    stage.at(1000, ask("a", 4, 1), ask("v", 15, 1))
    assert stage.ledger("v").waits_for == "blocks"
    stage.end_step(2000)
    return stage, WaitTime(blocks_ns=1000)


def its_blocks_went_to_others() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits(num_blocks=4))
    stage.at(1000, ask("a", 8, 3), ask("v", 8, 3))
    stage.end_step(2000)
    assert stage.ledger("v").state == "preempted" and stage.ledger("v").waits_for == "blocks"
    stage.end_step(3000)
    stage.end_step(4000)
    return stage, WaitTime(blocks_ns=2000)


def its_grammar_is_compiled() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 4, 1, grammar_key="g"))
    stage.at(2500)
    assert stage.ledger("v").waits_for == "grammar"
    stage.at(4000, GrammarReady("g"))
    return stage, WaitTime(grammar_ns=3000)


def its_keys_and_values_are_on_their_way() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 8, 1, num_remote_tokens=4))
    assert stage.ledger("v").waits_for == "remote_kv"
    stage.at(6000, BlocksLoaded(1, 4))
    return stage, WaitTime(remote_kv_ns=5000)


def its_client_is_silent() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 4, 1, is_session=True))
    stage.end_step(2000)
    assert stage.ledger("v").waits_for == "input"
    stage.at(9000, AddInput("v", 0, 1, [1, 2, 3], is_last=True))
    return stage, WaitTime(input_ns=7000)


def a_more_urgent_one_came_later() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits(max_num_seqs=1, policy="priority"))
    stage.at(1000, ask("a", 4, 1), ask("v", 4, 1, priority=5))
    stage.at(1500, ask("urgent", 4, 2))
    assert stage.ledger("v").waits_for == "sequences"
    stage.end_step(2000)
    assert stage.ledger("v").waits_for == "priority"
    stage.end_step(3000)
    stage.end_step(4000)
    return stage, WaitTime(sequences_ns=1000, priority_ns=2000)


def another_tenant_had_less() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits(max_num_seqs=1, policy="fair"))
    stage.at(1000, ask("a", 8, 1, tenant="x"), ask("v", 4, 1, tenant="x"))
    stage.at(1500, ask("w", 4, 1, tenant="y"))
    stage.end_step(2000)
    assert stage.ledger("v").waits_for == "priority"
    stage.end_step(3000)
    return stage, WaitTime(sequences_ns=1000, priority_ns=1000)


def no_worker_is_attached() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits(), is_attached=False)
    stage.at(1000, ask("v", 4, 1))
    assert stage.ledger("v").waits_for == "worker"
    stage.at(6000, WorkerAttached(1))
    return stage, WaitTime(worker_ns=5000)


def others_are_on_trial() -> tuple[Stage, WaitTime]:
    stage = Stage(make_limits())
    stage.at(1000, ask("a", 4, 1), ask("b", 4, 1))
    stage.at(1500, ask("v", 4, 1))
    stage.fail_step(2000)
    assert stage.ledger("v").waits_for == "worker"
    stage.end_step(3000)
    stage.end_step(4000)
    return stage, WaitTime(budget_ns=500, worker_ns=2000)


CAUSES = [
    budget_goes_to_a_long_prompt,
    a_step_is_under_way,
    all_rows_are_taken,
    blocks_are_short,
    the_watermark_keeps_blocks_free,
    the_whole_prompt_has_no_room,
    its_blocks_went_to_others,
    its_grammar_is_compiled,
    its_keys_and_values_are_on_their_way,
    its_client_is_silent,
    a_more_urgent_one_came_later,
    another_tenant_had_less,
    no_worker_is_attached,
    others_are_on_trial,
]


@pytest.mark.parametrize("plant", CAUSES)
def test_a_planted_cause_of_waiting_is_recognised(plant: Callable[[], tuple[Stage, WaitTime]]) -> None:
    stage, expected = plant()
    ledger = stage.ledger("v")
    assert (ledger.state, ledger.waits_for, ledger.waiting) == ("running", "", expected)
    now_ns = stage.planned[-1].now_ns
    while stage.plans:
        now_ns += 1000
        stage.end_step(now_ns)
    ledger = stage.ledger("v")
    assert ledger.ended_ns is not None and ledger.waiting == expected
    assert parts_ns(ledger) == ledger.ended_ns


def test_every_cause_that_the_scheduler_has_is_among_those_that_are_planted() -> None:
    found = {name for plant in CAUSES for name, ns in msgspec.structs.asdict(plant()[1]).items() if ns}
    assert found == set(WaitTime.__struct_fields__) - {"adapter_ns"}
    assert len(CAUSES) >= 12


# Whole lives ----------------------------------------------------------------------------------------------------------


def test_the_ledger_of_a_life_with_chunks_a_preemption_and_a_death() -> None:
    stage = Stage(make_limits(num_blocks=5, long_prefill_token_threshold=5))
    stage.at(1000, ask("a", 4, 6), ask("v", 9, 5, arrival_ns=400))
    stage.end_step(2000)  # of v 5 positions of the prompt are computed, then 4
    stage.end_step(3100)  # its first token
    first = stage.ledger("v")
    assert (first.chunks, first.prefill_ns, first.state) == ((5, 4), 2100, "running")
    stage.end_step(4300)
    stage.end_step(5600)
    stage.at(6000, WorkerGone())
    gone = stage.ledger("v")
    assert (gone.waits_for, gone.preemptions) == ("worker", (PreemptionRecord(5, "worker", 12),))
    stage.plans.clear()
    stage.at(7000, WorkerAttached(2))
    for now_ns in range(8000, 20_000, 1000):
        if stage.plans:
            stage.end_step(now_ns)
    ledger = stage.ledger("v")
    assert ledger.ended_ns is not None
    assert (ledger.state, ledger.num_prompt_tokens, ledger.num_output_tokens) == ("length_capped", 9, 5)
    assert (ledger.arrival_ns, ledger.queued_ns, ledger.waiting.worker_ns) == (400, 1000, 1000)
    assert parts_ns(ledger) == ledger.ended_ns - 400
    computed, chunks, is_prefilling = Counter[int](), list[int](), True
    runs = {new.run: new.request_id for plan in stage.planned for new in plan.new_rows}
    for plan in stage.planned:
        is_prefilling |= any(new.request_id == "v" for new in plan.new_rows)
        for run, start, count, samples in rows_of(plan):
            if runs[run] == "v":
                computed.update(range(start, start + count))
                chunks += [count] * is_prefilling
                is_prefilling &= not samples
    assert ledger.chunks == tuple(chunks) and len(chunks) > 3
    assert ledger.num_recomputed_tokens == sum(times - 1 for times in computed.values()) > 0


def rows_of(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    """(run, start, tokens, whether it yields one) of each row of a plan."""
    runs, samples = np.frombuffer(plan.runs, "<i8").tolist(), np.frombuffer(plan.samples, np.bool_).tolist()
    return list(zip(runs, ints(plan.starts), ints(plan.num_tokens), samples, strict=True))


def test_drafts_and_those_that_were_accepted_are_counted() -> None:
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 4, 20))
    (new,) = stage.planned[0].new_rows
    stage.end_step(2000, Drafts([new.run], [5], [[1, 2, 3]]))
    stage.end_step(3000, Drafts([new.run], [8], [[1, 2]]), num_accepted=2)
    assert (stage.ledger("v").num_draft_tokens, stage.ledger("v").num_accepted_tokens) == (3, 2)
    stage.end_step(4000)
    stage.end_step(5000)
    stage.at(6000, Abort("v", 1, "enough"))
    ledger = stage.ledger("v")
    assert (ledger.num_draft_tokens, ledger.num_accepted_tokens, ledger.num_output_tokens) == (5, 2, 6)
    assert (ledger.chunks, ledger.num_recomputed_tokens, ledger.prefill_ns, ledger.decode_ns) == ((4,), 0, 1000, 4000)


def test_choices_of_a_request_are_told_together_and_one_that_ends_at_once_too() -> None:
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 4, 5), ask("v", 4, 2, choice=1), ask("v", 0, 5, choice=2))
    stage.end_step(2000)
    stage.end_step(3000)
    told = stage.scheduler.explain("v")
    assert [(ledger.choice, ledger.state) for ledger in told] == [(0, "running"), (1, "length_capped"), (2, "ignored")]
    assert [ledger.ended_ns for ledger in told] == [None, 3000, 1000]
    assert stage.scheduler.explain("w") == ()


def test_a_question_changes_nothing() -> None:
    limits = make_limits(max_num_seqs=2)
    asked, silent = Stage(limits), Stage(limits)
    for stage in (asked, silent):
        stage.at(1000, *(ask(f"r{index}", 4, 4) for index in range(5)))
    for now_ns in range(2000, 16_000, 1000):
        for index in range(5):
            asked.scheduler.explain(f"r{index}", now_ns + 17)
        for stage in (asked, silent):
            if stage.plans:
                stage.end_step(now_ns)
    assert asked.planned == silent.planned
    assert [asked.ledger(f"r{index}") for index in range(5)] == [silent.ledger(f"r{index}") for index in range(5)]


# Cost -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_running", [1, 64])
def test_a_steady_step_calls_the_book_as_often_whatever_the_number_of_requests(
    num_running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(make_limits(block_size=16))
    stage.at(1000, *(ask(f"r{index}", 4, 100) for index in range(num_running)))
    stage.end_step(2000)
    calls = Counter[str]()
    for name in ("advance", "stop", "come", "hold", "line_up", "start", "token", "chunk", "preempt", "end"):
        monkeypatch.setattr(LedgerBook, name, counted(name, getattr(LedgerBook, name), calls))
    for step in range(40):
        stage.end_step(3000 + 1000 * step)
    assert calls == {"advance": 80, "stop": 40}


def counted(name: str, method: Callable[..., object], calls: Counter[str]) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        calls[name] += 1
        return method(*args, **kwargs)

    return call


# Sums -----------------------------------------------------------------------------------------------------------------


def check_sums(world: World) -> int:
    """Of all requests that the scheduler knows; how many have ended."""
    now_ns = world.now_ns
    num_ended = 0
    for name in {name for name, _ in world.admits}:
        for ledger in world.scheduler.explain(name):
            num_ended += ledger.ended_ns is not None
            assert parts_ns(ledger) == (now_ns if ledger.ended_ns is None else ledger.ended_ns) - ledger.arrival_ns
            assert min(msgspec.structs.astuple(ledger.waiting)) >= 0
    return num_ended


@pytest.mark.parametrize("seed", range(6))
def test_parts_are_the_whole_over_whatever_happens(seed: int) -> None:
    """Admissions, chunks, drafts, preemptions, sessions, loads, grammars, deadlines, deaths, aborts."""
    choices = SeededChoices(seed)
    world = World(choose_limits(choices))
    for _ in range(TRANSITIONS_A_WORLD):
        one_of(choices, TRANSITIONS)(world, choices)
        check_sums(world)
    world.finish()
    assert check_sums(world) > 3
