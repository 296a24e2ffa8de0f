"""How many drafts a row gets: the best of all choices, and the same again after a restart."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bench.draft_lengths import measure
from callboard.scheduling.draft_lengths import DraftLengths
from callboard.scheduling.step_times import StepTimes
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import make_admit, make_limits

MOST = 3


def lengths(num_rows: int = 4) -> DraftLengths:
    return DraftLengths(make_limits(max_num_seqs=num_rows, max_drafts=MOST, has_adaptive_drafts=True))


def teach(known: DraftLengths, row: int, num_drafted: int, num_accepted: int, times: int = 1) -> None:
    for _ in range(times):
        counts = (np.array([n], np.int32) for n in (num_drafted, num_drafted, num_accepted))
        known.learn(np.array([row]), *counts, np.zeros(1, np.bool_))


@given(
    accepted=st.lists(st.integers(0, MOST), min_size=1, max_size=3),
    slopes=st.lists(st.integers(0, 30), min_size=12, max_size=12),
    repeats=st.integers(1, 12),
)
def test_it_is_the_best_of_all_choices(accepted: list[int], slopes: list[int], repeats: int) -> None:
    known, num_rows = lengths(), len(accepted)
    for row, num_accepted in enumerate(accepted):
        teach(known, row, MOST, num_accepted, repeats)
    duration = 100
    for size in range(1, num_rows * (1 + MOST) + 1):
        known.step_times.learn(size, duration)
        duration += slopes[size - 1]
    rows = np.arange(num_rows)
    chosen = known.wanted(rows, np.full(num_rows, MOST, np.int32), num_rows)
    worth = np.concatenate((np.zeros((num_rows, 1)), np.cumsum(known._worth(rows), axis=1)), axis=1)
    times = known.step_times.curve(num_rows, num_rows * (1 + MOST))

    def rate(counts: tuple[int, ...]) -> float:
        gain = sum(worth[row, count] for row, count in enumerate(counts))
        return float((num_rows + gain) / times[sum(counts)])

    best = max(rate(counts) for counts in itertools.product(range(MOST + 1), repeat=num_rows))
    assert rate(tuple(chosen.tolist())) == pytest.approx(best)


def test_chances_follow_what_was_accepted() -> None:
    known = lengths()
    teach(known, 0, 3, 3, 40)
    teach(known, 1, 3, 0, 40)
    worth = known._worth(np.array([0, 1, 2]))
    assert worth[0].min() > 0.85 and worth[1].max() < 0.1
    assert worth[1, 0] < worth[2, 0] < worth[0, 0], "of a new row what all rows have shown"
    known.enter(1)
    assert known._worth(np.array([1]))[0, 0] == worth[2, 0]


def test_what_was_given_up_is_tried_again() -> None:
    known = lengths(1)
    for size in range(1, 5):
        known.step_times.learn(size, 100 + 20 * size)
    rows, room = np.array([0]), np.array([MOST], np.int32)
    teach(known, 0, 3, 0, 60)
    assert known.wanted(rows, room, 1).tolist() == [0]
    teach(known, 0, 0, 0, 63)
    assert known.wanted(rows, room, 1).tolist() == [0]
    teach(known, 0, 0, 0)
    assert known.wanted(rows, room, 1).tolist() == [1], "after 64 steps, one draft"
    teach(known, 0, 1, 1, 40)
    assert known.wanted(rows, room, 1).tolist() > [0], "which is accepted again"


def test_times_between_sizes_and_beyond_them() -> None:
    times = StepTimes()
    assert times.curve(1, 8).size == 0
    times.learn(4, 100)
    assert times.curve(1, 4).tolist() == [100] * 4
    assert times.curve(4, 40).size == 3, "sizes up to 6 are tried"
    times.learn(8, 140)
    assert times.curve(4, 8).tolist() == [100, 110, 120, 130, 140]
    assert times.curve(20, 22).tolist() == [260, 270, 280]
    times.learn(6, 90)
    assert times.curve(5, 7).tolist() == [100, 100, 120], "they never fall"
    for _ in range(60):
        times.learn(4, 200)
    assert times.curve(4, 4)[0] == pytest.approx(200, rel=0.02)


def test_a_step_that_waited_for_something_else_counts_for_little() -> None:
    times = StepTimes()
    for _ in range(30):
        times.learn(3, 1_000)
    times.learn(3, 1_000_000)
    assert times.curve(3, 3)[0] == pytest.approx(1_050, rel=0.001)
    times.learn(4, 1_000_000)
    assert times.curve(4, 4)[0] == pytest.approx(1.5 * 1_050, rel=0.001), "the first of its size, too"


@pytest.mark.parametrize("batch", [1, 96])
def test_on_a_device_with_a_knee(batch: int) -> None:
    speed = measure(batch, knee=300, chance=0.7, num_steps=150)
    assert speed.of_best > 0.95 and speed.of_none > 0.98


@pytest.mark.accept
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chance", [0.8, 0.4])
@pytest.mark.parametrize("batch", [1, 4, 16, 48, 96, 128])
def test_on_a_device_with_a_knee_at_every_batch(batch: int, chance: float) -> None:
    speed = measure(batch, knee=300, chance=chance, num_steps=600)
    print(f"{batch} rows, {chance}: {speed.of_best:.3f} of the best fixed, {speed.of_none:.3f} of none")
    assert speed.of_best > 0.95 and speed.of_none > 0.98


def test_a_restored_scheduler_chooses_the_same() -> None:
    limits = make_limits(max_num_seqs=4, max_drafts=MOST, has_adaptive_drafts=True)
    engine = Engine(limits)
    engine.admit(*(make_admit(f"r{n}", [n] * 5, max_tokens=60, ignore_eos=True) for n in range(1, 5)))
    for _ in range(12):
        engine.run_step()
    first = engine.scheduler
    first._state.draft_lengths.step_times.learn(4, 1_000)
    restored = type(first).restore(limits, first.snapshot())
    assert restored.snapshot() == first.snapshot()
    known, there = first._state.draft_lengths, restored._state.draft_lengths
    for one, other in ((known, there), (known.step_times, there.step_times)):
        arrays = {name: value for name, value in vars(one).items() if isinstance(value, np.ndarray)}
        arrays.pop("_steps_without", None)  # nobody was given up
        assert arrays and all(value.any() and (value == vars(other)[name]).all() for name, value in arrays.items())
    assert msgspec.to_builtins(first.statistics()) == msgspec.to_builtins(restored.statistics())
