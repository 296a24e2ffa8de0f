"""Which bodies of work are recorded as graphs, and when.

A body is run as it is the first time that it is asked for, and recorded in an idle gap; or, if it has many launches, at
the second time. Eager: what is asked for at the start is recorded there. Off, or a device that cannot: nothing is. A
graph saves launches and nothing else, so a body that cannot be recorded is run as it is for good.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Hashable
from typing import Literal

import torch

from ..collectives.counted import CollectiveCounts, CountedCollective
from .seam import Device

Mode = Literal["lazy", "eager", "off"]


class GraphCache:
    """Graphs by key."""

    def __init__(self, device: Device, mode: Mode, counted: CountedCollective | None = None) -> None:
        """counted: what counts calls that bodies make, and is told of those that a graph makes."""
        self._device, self._counted = device, counted
        self.can_record = device.can_record and mode != "off"
        self.is_eager = self.can_record and mode == "eager"
        self._memory = device.graph_memory()
        self._graphs: dict[Hashable, Callable[[], None]] = {}
        self._bodies: dict[Hashable, Callable[[], None]] = {}
        """Those that have run and are not recorded, in the order in which they ran first."""
        self._refused: set[Hashable] = set()
        """Those whose recording failed."""
        self.num_bytes = 0
        """Of the device's memory that went with recording."""

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, body: Callable[[], None], *, has_few_launches: bool = False) -> None:
        """What `body` does; for one key it is always the same work on the same memory. Recording holds a step up, so a
        body with few launches waits for an idle gap."""
        if (graph := self._graphs.get(key)) is not None:
            graph()
        elif not self.can_record or key in self._refused:
            body()
        elif key not in self._bodies:
            body()
            self._bodies[key] = body
        elif has_few_launches or not self._record(key):
            body()
        else:
            self._graphs[key]()

    def record_next(self) -> bool:
        """Record one body that has run already; False if there is none."""
        if not self._bodies:
            return False
        self._record(next(iter(self._bodies)))
        return True

    def _record(self, key: Hashable) -> bool:
        """Whether there is a graph now. Raises torch.AcceleratorError, behind which the device takes no work."""
        body = self._bodies.pop(key)
        self._device.release_unused()  # recording does it, too, and would hide what it takes
        before = self._device.free_bytes()
        try:
            self._graphs[key] = self._record_counted(body)
        except torch.AcceleratorError:
            raise
        except Exception:  # the memory for it, as a rule
            traceback.print_exc(file=sys.stderr)
            self._refused.add(key)
            return False
        self.num_bytes += max(0, before - self._device.free_bytes())
        return True

    def _record_counted(self, body: Callable[[], None]) -> Callable[[], None]:
        counted = self._counted
        if counted is None:
            return self._device.record(body, self._memory)
        before = counted.statistics()
        replay = self._device.record(body, self._memory)
        calls = counted.statistics() - before
        counted.add(CollectiveCounts() - calls)  # they were recorded and not made

        def run() -> None:
            replay()
            counted.add(calls)

        return run
