"""The scheduler against its brute-force twin, in tiny pools: whatever happens, every call gives the twin's plan."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from callboard.tests.scheduling.choices import DrawnChoices
from callboard.tests.scheduling.mutated import mutated
from callboard.tests.scheduling.planted_bugs import BUGS, PlantedBug
from callboard.tests.scheduling.twin_runs import run_worlds, telling
from callboard.tests.scheduling.twin_transitions import WEIGHTS, Transition, choose_limits, go_on
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
    def go_on(self, data: st.DataObject, transition: Transition) -> None:
        assert self.world is not None
        with telling(self.world):
            go_on(self.world, DrawnChoices(data), transition)

    def teardown(self) -> None:
        if self.world is not None:
            with telling(self.world):
                self.world.finish()


TwinMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTwinMachine = pytest.mark.slow(TwinMachine.TestCase)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_twin_agrees_over_50_000_transitions(part: int) -> None:
    run_worlds(SEEDS_A_RUN * part, NUM_BY_DAY // 10)


CHECKS = {
    "twin_compare.py": "the twin has another plan or state",
    "twin.py": "the twin has other runs, transfers or deadlines",
    "twin_world.py": "what clients are told, or counts",
    "fake_client.py": "the client: order and gaps of what it is told",
    "fake_worker.py": "the worker: rows, positions and K/V as hashes",
    "fake_connector.py": "the connector: two write to one block",
    "block_pool.py": "conservation in the pool",
    "integrity.py": "conservation in the scheduler",
}
"""Where it is raised -> what has found it; anything else is an invariant of the scheduler itself."""


NUM_BUGS_BY_DAY = 18


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=[pytest.mark.nightly] if n >= NUM_BUGS_BY_DAY else []) for n, bug in enumerate(BUGS)],
    ids=[bug.name for bug in BUGS],
)
def test_planted_bug_is_found(bug: PlantedBug) -> None:
    copies = mutated(f"callboard.{bug.module}", bug.old, bug.new, "callboard.tests.scheduling.twin_runs")
    with copies as runs, pytest.raises(Exception) as found:
        runs.run_worlds(bug.first_seed, 20_000)
    place = found.traceback[-1].path.name
    print(f"{bug.name}: {CHECKS.get(place, place)} ({found.value.__notes__[-1]})")


PARTS = ("pool", "request", "policies", "state", "events", "sessions", "trouble", "plan")
SHARED = {"callboard.scheduling.limits", "callboard.scheduling.events"}


@pytest.mark.parametrize("name", ["twin", *(f"twin_{part}" for part in PARTS)])
def test_the_twin_has_nothing_of_the_scheduler_but_its_limits_and_events(name: str) -> None:
    nodes = list(ast.walk(ast.parse(Path(__file__).with_name(f"{name}.py").read_text())))
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in imported if name.startswith(("callboard.scheduling", "callboard.kv_cache"))} <= SHARED


def test_there_are_15_planted_bugs() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 15


def test_the_real_modules_are_as_before() -> None:
    before = dict(sys.modules)
    with mutated("callboard.scheduling.lifo", "running[-1]", "running[0]", "callboard.scheduling.scheduler") as copy:
        assert copy is not before["callboard.scheduling.scheduler"]
    assert sys.modules == before
    assert import_module("callboard.scheduling.lifo") is before["callboard.scheduling.lifo"]
    run_worlds(0, 100)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_twin_agrees_over_1_000_000_transitions() -> None:
    num_worlds = run_worlds(10 * SEEDS_A_RUN, NUM_AT_NIGHT)
    print(f"{NUM_AT_NIGHT:,} transitions in {num_worlds:,} worlds")
