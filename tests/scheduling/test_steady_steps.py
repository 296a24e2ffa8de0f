"""Steady steps taken at once leave the state of as many single ones, attribute by attribute."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.tests.scheduling.choices import DrawnChoices, SeededChoices
from callboard.tests.scheduling.fake_worker import make_admit, make_limits
from callboard.tests.scheduling.mutated import mutated
from callboard.tests.scheduling.stage import Stage
from callboard.tests.scheduling.steady_runs import run_other_world, run_steady_world

WORLDS = range(40)
MANY_WORLDS = range(1000, 4000)
OTHER_WORLDS = range(80)


@pytest.mark.slow
def test_steps_taken_at_once_are_as_many_single_ones() -> None:
    seen: Counter[str] = Counter()
    for seed in WORLDS:
        run_steady_world(SeededChoices(seed), 60, seen)
    missing = {name for name, count in seen.items() if not count}
    assert not missing, "no stretch had these in it"


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_steps_taken_at_once_are_as_many_single_ones_in_many_worlds() -> None:
    for seed in MANY_WORLDS:
        run_steady_world(SeededChoices(seed), 60, Counter())


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_steps_taken_at_once_are_as_many_single_ones_whatever_happens(data: st.DataObject) -> None:
    run_steady_world(DrawnChoices(data), 15, Counter())


@pytest.mark.slow
def test_what_is_unusual_is_left_to_single_steps() -> None:
    """Drafts, sessions, grammars, transfers, failures: where steps can be taken at once they are the single ones."""
    assert sum(run_other_world(SeededChoices(seed), 60) for seed in OTHER_WORLDS) > 0


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("steady", "    changes.sort()\n", ""),
        ("steady", "            if step < num_steps - 1:\n", "            if True:\n"),
        ("steady", "        request.keep_tail()\n", ""),
        ("steady", "    state.ledgers.stop(WaitCause.BUDGET)\n", ""),
        ("steady", "        max_steps //= 2\n", "        break\n"),
        ("steady", "reduce(max_total - num_expected)", "reduce(max_total - num_tokens)"),
        ("steady", "        state.waiting\n        or ", "        "),
        ("step_log", "        self.num_overlapped += num_steps * has_successor\n", ""),
        ("estimate", "num_steps * _DECAY_PPM", "_DECAY_PPM"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(module: str, old: str, new: str) -> None:
    copies = mutated(f"callboard.scheduling.{module}", old, new, "callboard.tests.scheduling.steady_runs")
    with copies as runs, pytest.raises((AssertionError, IndexError, ValueError)):
        runs.run_steady_worlds(WORLDS)


def test_rows_are_steady_from_their_first_tokens_to_the_plan_of_their_last() -> None:
    """20 tokens of prompt, at most 9 of output: the first token and two plans in flight leave 7 steps."""
    stage = Stage(make_limits(max_num_batched_tokens=16))
    stage.at(1, make_admit("r", [1] * 20, max_tokens=9, ignore_eos=True))
    for now_ns in (2, 3):
        assert stage.scheduler.find_steady() is None, "a prompt, or a piece of it, is in flight"
        stage.end_step(now_ns)
    steady = stage.scheduler.find_steady()
    assert steady is not None
    assert (steady.max_steps, steady.num_tokens.tolist(), steady.starts.tolist()) == (6, [21], [22])
    for now_ns in range(4, 10):
        assert stage.scheduler.find_steady() is not None
        stage.end_step(now_ns)
    assert stage.scheduler.find_steady() is None, "all its tokens are planned"


@pytest.mark.parametrize(
    "change", [{}, {"deadline_ns": 10**9}, {"max_tokens": 4}, {"min_tokens": 50}, {"is_session": True, "max_tokens": 1}]
)
def test_one_unusual_request_makes_every_step_single(change: dict[str, object]) -> None:
    stage = Stage(make_limits())
    stage.at(1, make_admit("r", [1] * 20, max_tokens=90, ignore_eos=True))
    for now_ns in (2, 3, 4):
        stage.end_step(now_ns)
    assert stage.scheduler.find_steady() is not None
    stage.at(5, make_admit("s", [3], **{"max_tokens": 90, "ignore_eos": True, **change}))
    for now_ns in range(6, 10):
        stage.end_step(now_ns)
    assert (stage.scheduler.find_steady() is None) == bool(change)
