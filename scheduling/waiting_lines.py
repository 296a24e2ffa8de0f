"""Who waits, in lines of heaps: the structure behind `WaitingLines`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from .policy_views import Order
from .request import Rank, Request, RequestKey

_MIN_STALE = 64


class _Line:
    """A heap of ranks. What leaves from its middle stays in it until it comes up, or until most of the heap is such."""

    __slots__ = ("_heap", "requests")

    def __init__(self) -> None:
        self._heap: list[Rank] = []
        self.requests: dict[Rank, Request] = {}

    def add(self, rank: Rank, request: Request) -> None:
        assert rank not in self.requests, f"{request.key} has the rank of another that waits: {rank}"
        self.requests[rank] = request
        heappush(self._heap, rank)

    def remove(self, rank: Rank) -> None:
        """Each rebuilding of the heap is paid for by the moves that made its stale entries."""
        del self.requests[rank]
        if len(self._heap) > 2 * len(self.requests) + _MIN_STALE:
            self._heap = list(self.requests)
            heapify(self._heap)

    def first(self) -> Request:
        """The line is not empty."""
        while self._heap[0] not in self.requests:
            heappop(self._heap)
        return self.requests[self._heap[0]]


class HeapLines:
    """The waiting requests, sorted as an `Order` says; line and rank of each are those at the time of its `add`.

    `add`, `remove` and `first` are O(log n) in the long run, `lines` is O(lines).
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lines: dict[str, _Line] = {}
        self._places: dict[RequestKey, tuple[str, Rank]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: RequestKey) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[Request]:
        """Line by line; within a line in no particular order."""
        for line in self._lines.values():
            yield from line.requests.values()

    def add(self, request: Request) -> None:
        """It does not wait here yet."""
        assert request.key not in self._places, f"{request.key} waits already"
        name, rank = self._order.line_of(request), self._order.rank(request)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        line.add(rank, request)
        self._places[request.key] = (name, rank)

    def remove(self, request: Request) -> None:
        """From wherever it stands."""
        name, rank = self._places.pop(request.key)
        line = self._lines[name]
        line.remove(rank)
        if not line.requests:
            del self._lines[name]

    def lines(self) -> Sequence[str]:
        """The lines that are not empty, in the order in which they became so."""
        return tuple(self._lines)

    def first(self, line: str) -> Request | None:
        """The lowest rank of a line; None if nobody stands there."""
        found = self._lines.get(line)
        return None if found is None else found.first()
