"""First come, first served; what came last to run is preempted first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from .lifo import last_admitted
from .request import Request, RequestKey


class FirstComeFirstServed:
    """A queue with the preempted at its head. All O(1)."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[RequestKey, Request] = OrderedDict()

    def add(self, request: Request) -> None:
        """To the queue's end."""
        self._waiting[request.key] = request

    def put_back(self, request: Request) -> None:
        """To its head: who is preempted last comes back first."""
        self._waiting[request.key] = request
        self._waiting.move_to_end(request.key, last=False)

    def remove(self, request: Request) -> None:
        """From wherever it stands."""
        del self._waiting[request.key]

    def first(self) -> Request | None:
        """The head of the queue."""
        return next(iter(self._waiting.values()), None)

    def order(self, running: dict[int, Request]) -> Iterable[Request]:
        """As they were admitted."""
        return running.values()

    def victim(self, running: dict[int, Request]) -> Request:
        """The one admitted last."""
        return last_admitted(running)
