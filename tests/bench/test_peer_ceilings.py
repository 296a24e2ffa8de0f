"""The ceilings beside the peers: rows over the time of the matrices, of the points that decode."""

from __future__ import annotations

from pathlib import Path

from callboard.bench.peers.ceilings import ceilings_of, measure_ceilings
from callboard.bench.peers.points import Point
from callboard.bench.random_model import write_random_model
from callboard.bench.step_times import Phase, Profile, Step

POINTS = [Point("c1", 1, 2, 8, 8), Point("c3", 3, 6, 8, 8), Point("long", 1, 3, 100, 16)]


def step(num_rows: int, *phases: tuple[str, float, float]) -> Step:
    return Step(num_rows, 99.0, 1.0, tuple(Phase(*phase) for phase in phases), 0.0)


def profile(*steps: Step) -> Profile:
    return Profile("m", "int4", 2, 1.0, 1e9, 100, 10.0, 128, 50.0, steps)


def test_a_ceiling_counts_the_matrices_and_nothing_else() -> None:
    qkv, attention, norms = ("qkv", 2.0, 100.0), ("attention", 50.0, 10.0), ("norms", 7.0, 0.0)
    measured = profile(step(1, qkv, attention, norms, ("head", 2.0, 50.0)), step(3, ("qkv", 10.0, 100.0)))
    assert ceilings_of(measured, POINTS[:2]) == {"c1": 250.0, "c3": 300.0}


def test_without_phases_there_is_no_ceiling() -> None:
    assert ceilings_of(profile(step(1), step(3)), POINTS[:2]) == {}


def test_only_loops_that_mostly_decode_are_measured(tmp_path: Path) -> None:
    write_random_model(tmp_path)
    assert measure_ceilings(str(tmp_path), "int4", 1, POINTS[2:]) == {}
    found = measure_ceilings(str(tmp_path), "int4", 1, POINTS)
    assert set(found) == {"c1", "c3"} and all(rate > 0 for rate in found.values())
