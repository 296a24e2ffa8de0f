"""Deaths that not all neighbours have parted from yet: frontends may resume only behind the last of them."""

from __future__ import annotations


class Barriers:
    """One barrier for each dead incarnation; they are independent of one another."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], tuple[tuple[str, ...], set[str]]] = {}
        """(process, incarnation) -> (its actors, processes that have not parted from it)."""

    def begin(self, process: str, incarnation: int, actors: tuple[str, ...], neighbours: set[str]) -> tuple[str, ...]:
        """`process` died; returns its actors if nobody has to part from it, else nothing."""
        if not neighbours:
            return actors
        self._waiting[process, incarnation] = (actors, set(neighbours))
        return ()

    def parted(self, neighbour: str, process: str, incarnation: int) -> tuple[str, ...]:
        """`neighbour` has parted; returns the actors whose barrier is through with that, else nothing."""
        entry = self._waiting.get((process, incarnation))
        if entry is None:
            return ()
        actors, waiting = entry
        waiting.discard(neighbour)
        if waiting:
            return ()
        del self._waiting[process, incarnation]
        return actors

    def lost(self, neighbour: str) -> list[str]:
        """`neighbour` died itself: it has nothing of anybody any more. Returns the actors whose barrier is through."""
        settled: list[str] = []
        for process, incarnation in list(self._waiting):
            settled += self.parted(neighbour, process, incarnation)
        return settled
