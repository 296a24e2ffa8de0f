"""Steady steps taken at once leave the state of as many single ones, attribute by attribute."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.tests.scheduling.choices import DrawnChoices, SeededChoices
from callboard.tests.scheduling.steady_runs import run_other_world, run_steady_world

NUM_SEEDS, NUM_OTHERS = 60, 60


@pytest.mark.slow
def test_steps_taken_at_once_are_as_many_single_ones() -> None:
    seen: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        run_steady_world(SeededChoices(seed), 60, seen)
    print(seen)
