"""Random lives of a scheduler, with a restored one beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from callboard.scheduling.scheduler import Scheduler
from callboard.tests.journal.random_run import RandomRun
from callboard.tests.scheduling.choices import Choices, SeededChoices, one_of
from callboard.tests.scheduling.restored_beside import RestoredBeside
from callboard.tests.scheduling.twin_transitions import TRANSITIONS, choose_limits
from callboard.tests.scheduling.twin_world import World


def run_world(choices: Choices, num_transitions: int, seen: Counter[str]) -> None:
    """Requests of every kind; a new snapshot after one in sixteen transitions, and of what is new."""
    world = World(choose_limits(choices))
    beside = RestoredBeside(world.scheduler, seen)
    world.scheduler = cast(Scheduler, beside)
    for _ in range(num_transitions):
        one_of(choices, TRANSITIONS)(world, choices)
        if choices.below(16) == 15 or beside.has_news:
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
        if run.random.random() < 0.06 or beside.has_news:
            beside.renew()
    run.engine.run()
    beside.check()
    run.scheduler.writer.close()


def run_worlds(seeds: Iterable[int]) -> None:
    """One of each."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        run_world(SeededChoices(seed), 80, seen)
