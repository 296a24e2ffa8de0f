"""A journal replays to the same bytes, whatever happened to its scheduler; a plan that differs is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.journal.plan_text import RunNames, plan_lines
from callboard.journal.reader import JournalFile
from callboard.journal.replay import Replay, runs_of
from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.events import Event
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.journal.random_run import random_run
from callboard.tests.journal.recording import opened, recorded_engine, replayed
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import make_admit, make_limits


class Plans:
    """Notes the plans of a replay."""

    def __init__(self) -> None:
        self.encoded: list[bytes] = []

    def events(self, now_ns: int, events: Sequence[Event]) -> None: ...

    def planned(self, plan: StepPlan) -> None:
        self.encoded.append(msgspec.msgpack.encode(plan))

    def sent(self, now_ns: int, outgoing: object) -> None: ...


def test_a_run_with_preemptions_replays_to_the_same_bytes(tmp_path: Path) -> None:
    engine, scheduler = recorded_engine(make_limits(num_blocks=9, block_size=4), tmp_path / "j")
    engine.admit(*(make_admit(f"r{n}", [n] * 5, max_tokens=9) for n in range(1, 5)))
    engine.run()
    assert scheduler.statistics().num_preemptions > 0
    scheduler.writer.close()
    plans = Plans()
    replay = Replay(observers=[plans])
    replay.run(opened(tmp_path / "j"))
    assert (replay.difference, replay.ending) == (None, "")
    assert plans.encoded == scheduler.plans and len(plans.encoded) > 9


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_lives_replay_to_the_same_bytes(seed: int) -> None:
    with TemporaryDirectory() as folder:
        _, scheduler = random_run(seed, Path(folder) / "j", num_actions=40)
        plans = Plans()
        replay = Replay(observers=[plans])
        replay.run(opened(Path(folder) / "j"))
        assert (replay.difference, replay.ending) == (None, "")
        assert plans.encoded == scheduler.plans
        assert replay.scheduler is not None and replay.scheduler.statistics() == scheduler.statistics()


def test_the_random_lives_have_all_that_can_happen(tmp_path: Path) -> None:
    totals = np.zeros(4, np.int64)
    for seed in range(16):
        statistics = random_run(seed, tmp_path / f"j{seed}", num_actions=100)[1].statistics()
        totals += (
            statistics.num_preemptions,
            statistics.num_failed_steps,
            statistics.num_resumed,
            statistics.num_orphans_ended,
        )
    assert (totals > 0).all(), totals


@pytest.mark.parametrize("step", [0, 5, 70, 149])
def test_a_plan_that_differs_is_told_at_its_step(tmp_path: Path, step: int) -> None:
    engine, scheduler = recorded_engine(make_limits(max_num_seqs=2), tmp_path / "j")
    engine.admit(*(make_admit(f"r{n}", [n] * 5, max_tokens=75, ignore_eos=True) for n in range(1, 5)))
    engine.run()
    scheduler.writer.close()
    assert len(scheduler.plans) >= 150

    class Changed(Scheduler):
        """Makes one plan whose first row begins a position later."""

        def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
            plan = super().step(now_ns, events)
            if plan is None or plan.step != step:
                return plan
            starts = np.frombuffer(plan.starts, "<i4").copy()
            starts[0] += 1
            return msgspec.structs.replace(plan, starts=starts.tobytes())

    replay = Replay(make_scheduler=Changed)
    replay.run(opened(tmp_path / "j"))
    assert replay.difference is not None and replay.difference.plan is not None
    assert (replay.num_steps, replay.difference.plan.step, replay.difference.reason) == (step, step, "the plans differ")
    assert replay.difference.recorded.num_rows == 2
    replay = replayed(tmp_path / "j")
    assert replay.difference is None and replay.num_steps == len(scheduler.plans)


def test_a_plan_too_many_or_too_few_and_an_error_are_differences(tmp_path: Path) -> None:
    engine, scheduler = recorded_engine(make_limits(), tmp_path / "j")
    engine.admit(make_admit("r", [1, 2, 3], max_tokens=5, ignore_eos=True))
    engine.run()
    scheduler.writer.close()

    class Lazy(Scheduler):
        def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
            plan = super().step(now_ns, events)
            return None if plan is not None and plan.step == 2 else plan

    class Broken(Scheduler):
        def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
            assert self._next_step < 2, "planted"
            return super().step(now_ns, events)

    for kind, reason in ((Lazy, "no plan was made now"), (Broken, "planted")):
        replay = Replay(make_scheduler=kind)
        replay.run(opened(tmp_path / "j"))
        assert replay.difference is not None and reason in replay.difference.reason
        assert replay.num_steps == 2


def test_a_call_that_raised_is_the_last_of_its_journal_and_raises_again(tmp_path: Path) -> None:
    engine, scheduler = recorded_engine(make_limits(), tmp_path / "j")
    engine.admit(make_admit("r", [1, 2, 3], max_tokens=5, ignore_eos=True))
    engine.work()
    result = engine.results[0]
    with pytest.raises(Exception, match="oldest in flight"):
        scheduler.step(engine.tick(), [msgspec.structs.replace(result, step=result.step + 1)])
    scheduler.writer.close()
    replay = replayed(tmp_path / "j")
    assert replay.difference is not None and "oldest in flight" in replay.difference.reason


def test_lives_that_follow_each_other_are_told_apart(tmp_path: Path) -> None:
    for seed in (1, 2):
        random_run(seed, tmp_path / "j", num_actions=10)
    files = opened(tmp_path / "j")
    assert [len(run) for run in runs_of(files)] == [1, 1]


def test_files_of_one_life_without_snapshots_are_replayed_together_and_a_later_one_alone_is_not(tmp_path: Path) -> None:
    engine, scheduler = recorded_engine(make_limits(), tmp_path / "j", max_bytes=1 << 16)
    scheduler.writer._take_snapshot = None
    engine.admit(make_admit("r", [1, 2, 3], max_tokens=400, ignore_eos=True))
    while engine.plans or engine.results:
        if engine.plans:
            engine.work()
        engine.deliver()
        scheduler.writer.flush()
    scheduler.writer.close()
    files = opened(tmp_path / "j")
    (run,) = runs_of(files)
    assert 2 < len(run) < 8
    replay = Replay()
    replay.run(run)
    assert replay.difference is None and replay.num_steps == len(scheduler.plans) >= 400
    with pytest.raises(ConfigError, match="goes on from an earlier file"):
        Replay().run([JournalFile(files[-1].path)])


def test_the_hash_does_not_depend_on_when_the_journal_was_written(tmp_path: Path) -> None:
    digests = []
    for name, is_flushed in (("a", False), ("b", True)):
        limits = make_limits(max_num_seqs=2)
        engine, scheduler = recorded_engine(limits, tmp_path / name)
        engine.admit(*(make_admit(f"r{n}", [n] * 5, max_tokens=20) for n in range(1, 5)))
        while engine.plans or engine.results:
            if engine.plans:
                engine.work()
            engine.deliver()
            if is_flushed:
                scheduler.writer.flush()
        scheduler.writer.close()
        digests.append(replayed(tmp_path / name).digest())
    assert digests[0] == digests[1]


def test_a_replay_stops_behind_a_step(tmp_path: Path) -> None:
    random_run(4, tmp_path / "j", num_actions=60)
    replay = Replay(until_step=5)
    replay.run(opened(tmp_path / "j"))
    assert replay.is_at_step and replay.num_steps == 6


def test_plans_are_shown_in_lines() -> None:
    engine = Engine(make_limits(max_num_batched_tokens=64))
    (first, second) = engine.admit(make_admit("r", list(range(1, 81)), max_tokens=5))
    names = RunNames()
    names.planned(first)
    assert plan_lines(first, names) == [
        "step 0 of epoch 1: 1 rows, 64 tokens",
        "  row 0, run 1, r#0: positions 0..63, new, 80 tokens, blocks 0, 1, 2, 3",
    ]
    assert plan_lines(second, names) == [
        "step 1 of epoch 1: 1 rows, 16 tokens",
        "  row 0, run 1, r#0: positions 64..79, samples",
        "  blocks 4 to row 0",
    ]
