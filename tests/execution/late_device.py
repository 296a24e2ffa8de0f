"""A device on the CPU that shows the host its results as late as a real one may, and counts what it is asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from callboard.execution.device.seam import HostDevice, Moment


class Arrival:
    """The host's memory is written when it waits for it, and not before."""

    def __init__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._target, self._values = target, source.clone()
        self._is_there = False

    def is_past(self) -> bool:
        return self._is_there

    def wait(self) -> None:
        if not self._is_there:
            self._target.copy_(self._values)
            self._is_there = True


class LateDevice(HostDevice):
    """`records`: whether it says that it can record; what was recorded is then run as it is."""

    def __init__(self, *, records: bool = False) -> None:
        self.can_record = records
        self.num_records = self.num_replays = self.num_copies_in = 0

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Moment:
        return Arrival(target, source)

    def copy_in(self, target: torch.Tensor, source: torch.Tensor) -> Moment:
        self.num_copies_in += 1
        return super().copy(target, source)

    def record(self, run: Callable[[], None], memory: object) -> Callable[[], None]:
        self.num_records += 1

        def replay() -> None:
            self.num_replays += 1
            run()

        return replay
