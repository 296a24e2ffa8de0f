"""Requests that have to end by a given time, earliest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from .request import Request, RequestKey

_MIN_STALE = 64

FindRequest = Callable[[str, int], Request | None]


class Deadlines:
    """A heap; what ended before its deadline stays until it comes up, or until more than half of the heap is such."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, RequestKey]] = []
        self._num_live = 0

    def __len__(self) -> int:
        """Requests that have one, and some that have ended before."""
        return len(self._heap)

    def add(self, request: Request) -> None:
        """A live request came, with a deadline or without."""
        if request.deadline_ns is not None:
            self._num_live += 1
            heappush(self._heap, (request.deadline_ns, request.key))

    def remove(self, request: Request, find: FindRequest) -> None:
        """It has ended; `find` does not find it any more."""
        if request.deadline_ns is None:
            return
        self._num_live -= 1
        if len(self._heap) > 2 * self._num_live + _MIN_STALE:
            self._heap = [entry for entry in self._heap if _is_live(entry, find)]
            heapify(self._heap)

    def due(self, now_ns: int, find: FindRequest) -> Iterator[Request]:
        """Take out, one by one, the live requests whose deadline is `now_ns` or before."""
        while self._heap and self._heap[0][0] <= now_ns:
            entry = heappop(self._heap)
            request = find(*entry[1])
            if request is not None and request.deadline_ns == entry[0]:
                yield request

    def next_ns(self, find: FindRequest) -> int | None:
        """The first deadline of a live request."""
        while self._heap and not _is_live(self._heap[0], find):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None


def _is_live(entry: tuple[int, RequestKey], find: FindRequest) -> bool:
    request = find(*entry[1])
    return request is not None and request.deadline_ns == entry[0]
