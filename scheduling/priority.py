"""The most urgent first: by (priority, arrival, order of coming), a lower number before a higher one."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from operator import attrgetter

from .request import Rank, Request

_rank = attrgetter("rank")
_MIN_STALE = 64


class MostUrgentFirst:
    """A heap of ranks; a preempted request has the rank that it had, and so its place.

    `add`, `put_back`, `remove` and `first` are O(log n) in the long run: what is removed from the middle stays in the
    heap until it comes up, or until more than half of the heap is such.
    """

    def __init__(self) -> None:
        self._waiting: dict[Rank, Request] = {}
        self._heap: list[Rank] = []

    def add(self, request: Request) -> None:
        """Behind all that are as urgent and came before."""
        if len(self._heap) > 2 * len(self._waiting) + _MIN_STALE:
            self._heap = list(self._waiting)
            heapify(self._heap)
        self._waiting[request.rank] = request
        heappush(self._heap, request.rank)

    def put_back(self, request: Request) -> None:
        """To its place: more urgent requests that have come meanwhile go first."""
        self.add(request)

    def remove(self, request: Request) -> None:
        """From wherever it stands."""
        del self._waiting[request.rank]

    def first(self) -> Request | None:
        """The lowest rank."""
        while self._heap and self._heap[0] not in self._waiting:
            heappop(self._heap)
        return self._waiting[self._heap[0]] if self._heap else None

    def order(self, running: dict[int, Request]) -> Iterable[Request]:
        """By rank, so that only those behind a request have to go for it."""
        return sorted(running.values(), key=_rank)

    def victim(self, running: dict[int, Request]) -> Request:
        """The highest rank."""
        return max(running.values(), key=_rank)
