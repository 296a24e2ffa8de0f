"""Every interleaving of a caller and its helpers over two runs (team_model.py)."""

from __future__ import annotations

import pytest

from callboard.tests.kernels.team_model import Fault, Rules, explore


@pytest.mark.parametrize(("num_threads", "min_worlds"), [(1, 20), (2, 1_000)])
def test_each_part_is_done_once_and_in_its_phase_and_everybody_comes_home(num_threads: int, min_worlds: int) -> None:
    assert explore(num_threads, Rules()) > min_worlds


@pytest.mark.slow
def test_so_with_two_helpers() -> None:
    assert explore(3, Rules()) > 50_000


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        (Rules(asks_for_the_phase=False), "twice|early|go on"),
        (Rules(awaits_an_end=False), "twice|early|go on|not all"),
        (Rules(counts_parts_anew_before_the_end=False), "twice|early|go on|not all"),
        (Rules(looks_for_sleepers_after_the_end=False), "go on"),
    ],
    ids=["joins_another_phase", "joins_an_end", "counts_too_late", "wakes_nobody"],
)
def test_what_is_left_out_is_missed(rules: Rules, fault: str) -> None:
    with pytest.raises(Fault, match=fault):
        explore(2, rules)
