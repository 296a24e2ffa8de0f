"""Which work is recorded, and when; what becomes of work that cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from callboard.execution.device.graphs import GraphCache
from callboard.tests.execution.late_device import LateDevice


class Full(LateDevice):
    """Has no memory for what is recorded."""

    def __init__(self, error: Exception) -> None:
        super().__init__(records=True)
        self._error = error

    def record(self, run: Callable[[], None], memory: object) -> Callable[[], None]:
        self.num_records += 1
        raise self._error


def run_times(graphs: GraphCache, count: int, *, has_few_launches: bool = False) -> list[int]:
    """The body's runs, by the number of its run."""
    done: list[int] = []
    for turn in range(count):
        graphs.run("key", lambda turn=turn: done.append(turn), has_few_launches=has_few_launches)
    return done


def test_work_is_recorded_at_its_second_use_and_replayed_from_then_on() -> None:
    device = LateDevice(records=True)
    graphs = GraphCache(device, "lazy")
    assert len(run_times(graphs, 5)) == 5
    assert (device.num_records, device.num_replays, graphs.num_graphs) == (1, 4, 1)
    assert not graphs.record_next()


def test_work_of_few_launches_waits_for_an_idle_gap() -> None:
    device = LateDevice(records=True)
    graphs = GraphCache(device, "lazy")
    assert run_times(graphs, 3, has_few_launches=True) == [0, 1, 2]
    assert device.num_records == 0
    assert graphs.record_next() and not graphs.record_next()
    run_times(graphs, 2, has_few_launches=True)
    assert (device.num_records, device.num_replays) == (1, 2)


@pytest.mark.parametrize("in_idle_time", [False, True])
def test_work_that_cannot_be_recorded_is_run_as_it_is_and_tried_once(
    in_idle_time: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    device = Full(torch.OutOfMemoryError("no room"))
    graphs = GraphCache(device, "lazy")
    run_times(graphs, 1)
    if in_idle_time:
        graphs.record_next()
    assert run_times(graphs, 3) == [0, 1, 2]
    assert (device.num_records, graphs.num_graphs) == (1, 0)
    assert not graphs.record_next()
    assert "no room" in capfd.readouterr().err


def test_a_device_that_takes_no_work_any_more_is_told() -> None:
    graphs = GraphCache(Full(torch.AcceleratorError("sticky")), "lazy")
    with pytest.raises(torch.AcceleratorError):
        run_times(graphs, 2)


def test_off_records_nothing() -> None:
    device = LateDevice(records=True)
    graphs = GraphCache(device, "off")
    assert run_times(graphs, 3) == [0, 1, 2]
    assert device.num_records == 0 and not graphs.record_next()
