"""Deaths that not all neighbours have parted from yet: frontends may resume only behind the last of them."""

from __future__ import annotations

from ..mailbox.messages.control import Settled


class Barriers:
    """One barrier for each dead incarnation; they are independent of one another."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], tuple[Settled, set[str]]] = {}
        """(process, incarnation) -> (what the frontends will be told, processes that have not parted from it)."""

    def begin(self, process: str, incarnation: int, settled: Settled, neighbours: set[str]) -> Settled | None:
        """`process` died; returns `settled` if nobody has to part from it."""
        if not neighbours:
            return settled
        self._waiting[process, incarnation] = (settled, set(neighbours))
        return None

    def parted(self, neighbour: str, process: str, incarnation: int) -> Settled | None:
        """`neighbour` has parted; returns what the frontends are to be told if the barrier is through with that."""
        entry = self._waiting.get((process, incarnation))
        if entry is None:
            return None
        settled, waiting = entry
        waiting.discard(neighbour)
        if waiting:
            return None
        del self._waiting[process, incarnation]
        return settled

    def lost(self, neighbour: str) -> list[Settled]:
        """`neighbour` died itself: it has nothing of anybody any more. Returns what is to be told for that."""
        told = [self.parted(neighbour, process, incarnation) for process, incarnation in list(self._waiting)]
        return [settled for settled in told if settled is not None]
