"""When a process is started again: worked numbers."""

from __future__ import annotations

from callboard.actors.restarts import Restarts
from callboard.topology.schema import RestartPolicy


def test_the_first_comes_at_once_each_further_one_waits_twice_as_long() -> None:
    restarts = Restarts(RestartPolicy(max=5, within_s=60.0, backoff_s=0.5))
    assert [restarts.record_death(now_s) for now_s in (0, 1, 2, 3, 4)] == [0.0, 0.5, 1.0, 2.0, 4.0]


def test_one_more_than_max_within_the_window_is_too_many() -> None:
    restarts = Restarts(RestartPolicy(max=2, within_s=60.0))
    assert restarts.record_death(0) is not None and restarts.record_death(59) is not None
    assert restarts.record_death(60) is None
    assert restarts.describe() == "died 3 times within 60 s (restart.max = 2)"


def test_deaths_before_the_window_are_forgotten() -> None:
    restarts = Restarts(RestartPolicy(max=1, within_s=10.0))
    assert [restarts.record_death(now_s) for now_s in (0, 11, 22, 33)] == [0.0] * 4


def test_max_0_allows_none() -> None:
    assert Restarts(RestartPolicy(max=0)).record_death(0) is None


def test_the_wait_is_bounded() -> None:
    restarts = Restarts(RestartPolicy(max=10_000, within_s=1e9, backoff_s=1.0))
    waits = [restarts.record_death(0) for _ in range(5_000)]
    assert waits[:7] == [0, 1, 2, 4, 8, 16, 30] and set(waits[7:]) == {30.0}
