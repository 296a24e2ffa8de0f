"""A scheduler restored from a snapshot is the same in every attribute, and goes on in the same way, byte for byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.journal.random_run import RandomRun
from callboard.tests.scheduling.choices import Choices, DrawnChoices, SeededChoices, one_of
from callboard.tests.scheduling.deep_compare import attributes, differences
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import make_admit, make_limits
from callboard.tests.scheduling.restored_beside import RestoredBeside, contents_of, parts
from callboard.tests.scheduling.twin_transitions import TRANSITIONS, choose_limits
from callboard.tests.scheduling.twin_world import World

NUM_WORLDS, NUM_LIVES = 12, 25


def run_world(choices: Choices, num_transitions: int, seen: Counter[str]) -> None:
    """Requests of every kind; a new snapshot after one in four transitions."""
    world = World(choose_limits(choices))
    beside = RestoredBeside(world.scheduler, seen)
    world.scheduler = cast(Scheduler, beside)
    for _ in range(num_transitions):
        one_of(choices, TRANSITIONS)(world, choices)
        if choices.below(4) == 3:
            beside.renew()
    world.finish()
    beside.check()


def run_life(seed: int, folder: Path, num_actions: int, seen: Counter[str]) -> None:
    """Failed steps, deaths of workers and tokenizers, suspects on trial."""
    run = RandomRun(seed, folder / str(seed))
    beside = RestoredBeside(run.engine.scheduler, seen)
    run.engine.scheduler = cast(Scheduler, beside)
    for _ in range(num_actions):
        run.act()
        if run.random.random() < 0.25:
            beside.renew()
    run.engine.run()
    beside.check()
    run.scheduler.writer.close()


@pytest.mark.slow
def test_a_restored_scheduler_goes_on_as_the_first(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(NUM_WORLDS):
        run_world(SeededChoices(seed), 80, seen)
    for seed in range(NUM_LIVES):
        run_life(seed, tmp_path, 60, seen)
    missing = [name for name, count in seen.items() if not count]
    assert not missing, "no snapshot had these in it"


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_restored_schedulers_go_on_as_the_first_whatever_happens(data: st.DataObject) -> None:
    run_world(DrawnChoices(data), 20, Counter())
