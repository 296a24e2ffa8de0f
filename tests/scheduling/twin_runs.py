"""Many random worlds: the volume beside hypothesis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from callboard.tests.scheduling.choices import Choices, SeededChoices, one_of
from callboard.tests.scheduling.twin_transitions import TRANSITIONS, choose_limits, go_on
from callboard.tests.scheduling.twin_world import World

TRANSITIONS_A_WORLD = 80


def run_world(choices: Choices, num_transitions: int) -> int:
    """One world from beginning to end; returns how often its scheduler was called by a transition."""
    world = World(choose_limits(choices))
    with telling(world):
        for _ in range(num_transitions):
            go_on(world, choices, one_of(choices, TRANSITIONS))
        world.finish()
    return world.num_calls


@contextmanager
def telling(world: World) -> Iterator[None]:
    """An error tells what happened before."""
    try:
        yield
    except Exception as error:
        error.add_note("\n".join(world.story()))
        raise


def run_worlds(first_seed: int, num_transitions: int) -> int:
    """World after world until so many transitions are done; returns how many worlds that took. A failure names its
    seed: `run_world(SeededChoices(seed), TRANSITIONS_A_WORLD)`."""
    seed, done = first_seed, 0
    while done < num_transitions:
        try:
            done += run_world(SeededChoices(seed), TRANSITIONS_A_WORLD)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        seed += 1
    return seed - first_seed
