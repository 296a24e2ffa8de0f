"""Which bodies of work are recorded as graphs, and when.

A body is run as it is the first time that it is asked for, and recorded in an idle gap, or at the second time. Eager:
everything is recorded at the start. Off, or a device that cannot: nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal

from .seam import Device

Mode = Literal["lazy", "eager", "off"]


class GraphCache:
    """Graphs by key."""

    def __init__(self, device: Device, mode: Mode) -> None:
        self._device = device
        self.can_record = device.can_record and mode != "off"
        self.is_eager = self.can_record and mode == "eager"
        self._memory = device.graph_memory()
        self._graphs: dict[Hashable, Callable[[], None]] = {}
        self._bodies: dict[Hashable, Callable[[], None]] = {}
        """Those that have run and are not recorded, in the order in which they ran first."""
        self.num_bytes = 0
        """Of the device's memory that went with recording."""

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, body: Callable[[], None]) -> None:
        """What `body` does; for one key it is always the same work on the same memory."""
        if (graph := self._graphs.get(key)) is not None:
            graph()
        elif not self.can_record:
            body()
        elif key not in self._bodies:
            body()
            self._bodies[key] = body
        else:
            self._record(key)
            self._graphs[key]()

    def record_next(self) -> bool:
        """Record one body that has run already; False if there is none."""
        if not self._bodies:
            return False
        self._record(next(iter(self._bodies)))
        return True

    def _record(self, key: Hashable) -> None:
        self._device.release_unused()  # recording does it, too, and would hide what it takes
        before = self._device.free_bytes()
        self._graphs[key] = self._device.record(self._bodies.pop(key), self._memory)
        self.num_bytes += max(0, before - self._device.free_bytes())
