"""What the host tells the device in a step: one copy from a ring of buffers that the device reads by itself."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .seam import Device, Moment

_ALIGNMENT = 64
"""Kernels are made once for pointers that are multiples of 16 bytes, and again for others."""


class _Slot:
    def __init__(self, device: Device, size: int) -> None:
        self.host = device.host_bytes(size)
        self.array: NDArray[np.uint8] = self.host.numpy()
        self.there = torch.empty(size, dtype=torch.uint8, device=device.torch_device)
        self.read: Moment | None = None
        """When the device has read what was put here last."""


class StagingRing:
    """As many buffers as steps may be in flight, and one more, so that filling the next one waits for nobody as a rule.

    A step puts its arrays, then sends them, reads the tensors that it got for them, and closes.
    """

    def __init__(self, device: Device, num_slots: int, slot_bytes: int) -> None:
        self._device, self._slot_bytes = device, slot_bytes
        self._slots = [_Slot(device, slot_bytes) for _ in range(num_slots)]
        self._next = 0
        self._used = 0
        self._is_open = False

    @property
    def num_bytes(self) -> int:
        """On the device."""
        return self._slot_bytes * len(self._slots)

    def open(self) -> None:
        """Begin a step's arrays; waits until the device has read what the oldest buffer held."""
        if self._is_open:  # the step before failed, and may have launched reads
            self.close()
        self._is_open = True
        slot = self._slots[self._next]
        if slot.read is not None:
            slot.read.wait()
            slot.read = None
        self._used = 0

    def put(self, array: NDArray[np.generic]) -> Tensor:
        """The tensor [size], of the array's dtype, that will hold it behind `send`; empty arrays cost nothing.

        An array for which there is no room left, as of a great many new blocks, is copied at once, behind all work."""
        start, end = self._used, self._used + array.nbytes
        if end > self._slot_bytes:
            return torch.from_numpy(array).to(self._device.torch_device)
        slot = self._slots[self._next]
        slot.array[start:end].view(array.dtype)[:] = array
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return slot.there[start:end].view(dtype)

    def send(self) -> None:
        """Copy what was put, if anything was; what is launched from here on finds it."""
        if self._used:
            slot = self._slots[self._next]
            self._device.order_after(self._device.copy_in(slot.there[: self._used], slot.host[: self._used]))

    def close(self) -> None:
        """Everything that reads the tensors of this step was launched."""
        self._is_open = False
        if self._used:
            self._slots[self._next].read = self._device.mark()
            self._next = (self._next + 1) % len(self._slots)
