"""The scheduler against its brute-force twin, under random transitions in tiny pools: every call gives the twin's plan."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from callboard.tests.scheduling.choices import DrawnChoices
from callboard.tests.scheduling.twin_runs import run_worlds
from callboard.tests.scheduling.twin_transitions import WEIGHTS, choose_limits
from callboard.tests.scheduling.twin_world import World

NUM_BY_DAY, NUM_AT_NIGHT = 50_000, 1_000_000
SEEDS_A_RUN = 100_000


class TwinMachine(RuleBasedStateMachine):
    """The transitions of the random driver, drawn by hypothesis, which shrinks what it finds."""

    world: World | None = None

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.world = World(choose_limits(DrawnChoices(data)))

    @rule(data=st.data(), transition=st.sampled_from(list(WEIGHTS)))
    def go_on(self, data: st.DataObject, transition: object) -> None:
        assert self.world is not None
        transition(self.world, DrawnChoices(data))  # type: ignore[operator]

    def teardown(self) -> None:
        if self.world is not None:
            self.world.finish()


TwinMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTwinMachine = pytest.mark.slow(TwinMachine.TestCase)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_twin_agrees_over_50_000_transitions(part: int) -> None:
    run_worlds(SEEDS_A_RUN * part, NUM_BY_DAY // 10)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_twin_agrees_over_1_000_000_transitions() -> None:
    num_worlds = run_worlds(10 * SEEDS_A_RUN, NUM_AT_NIGHT)
    print(f"{NUM_AT_NIGHT:,} transitions in {num_worlds:,} worlds")
