"""Streams, events, pinned memory and graphs of a device; on the CPU there are none, and everything happens at once.

All else in this folder is the same code on both, so that tests run it on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Moment(Protocol):
    """A point in the order of what was launched."""

    def is_past(self) -> bool:
        """Whether the device has come to it."""
        ...

    def wait(self) -> None:
        """The calling thread waits until then."""
        ...


class Device(Protocol):
    """One device. Work is done in the order of its launches, but for copies to and from the host, which overlap with it
    and are ordered by moments."""

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def can_record(self) -> bool:
        """Whether `record` saves the launches of what it records."""
        ...

    def host_bytes(self, size: int) -> Tensor:
        """uint8 [size] on the host, which the device can copy from and to by itself."""
        ...

    def mark(self) -> Moment:
        """When all that was launched so far is done."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> Moment:
        """Between host and device, beside the work. `source` is complete when the work launched so far is done, or is
        the host's; what is launched later finds the copy made only behind `order_after` its moment."""
        ...

    def copy_in(self, target: Tensor, source: Tensor) -> Moment:
        """To the device, beside the work and not behind it: nothing that was launched reads `target` any more."""
        ...

    def order_after(self, moment: Moment) -> None:
        """What is launched from here on begins after `moment`."""
        ...

    def graph_memory(self) -> object:
        """Memory that recorded work shares; it is given back when the last of it that was recorded is gone, and then
        nothing more can be recorded there."""
        ...

    def record(self, run: Callable[[], None], memory: object) -> Callable[[], None]:
        """`run` as one launch, on the same memory each time. It has run before, so that nothing is set up in it."""
        ...

    def free_bytes(self) -> int:
        """Of the device's memory, what nobody holds."""
        ...

    def release_unused(self) -> None:
        """Give back what was kept of freed tensors."""
        ...


class _Past:
    """A moment of a device that does everything at once."""

    def is_past(self) -> bool:
        return True

    def wait(self) -> None:
        return


class HostDevice:
    """The CPU."""

    torch_device = torch.device("cpu")
    can_record = False

    def host_bytes(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def mark(self) -> Moment:
        return _Past()

    def copy(self, target: Tensor, source: Tensor) -> Moment:
        target.copy_(source)
        return _Past()

    copy_in = copy

    def order_after(self, moment: Moment) -> None:
        return

    def graph_memory(self) -> object:
        return None

    def record(self, run: Callable[[], None], memory: object) -> Callable[[], None]:
        return run

    def free_bytes(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def release_unused(self) -> None:
        return
