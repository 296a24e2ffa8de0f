"""Keys and values on their way from elsewhere: blocks that belong to a transfer until it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ..mailbox.messages.transfers import LoadBlocks
from .request import Request


class Transfers:
    """Live transfers by number. The blocks of one stay its own even if its request ends, for they are written to."""

    def __init__(self) -> None:
        self._last = 0
        self._requests: dict[int, Request | None] = {}
        self._block_ids: dict[int, list[int]] = {}
        self._unsent: deque[tuple[int, LoadBlocks]] = deque()
        """With the number of steps that must have ended before."""

    def begin(self, request: Request, num_tokens: int, block_ids: list[int], num_steps: int) -> int:
        """Load the first `num_tokens` positions of the request into these blocks, when the first `num_steps` steps have
        ended: rows that are over may stand in them, and write into blocks that were theirs. Returns its number."""
        self._last += 1
        request.transfer = self._last
        self._requests[self._last] = request
        self._block_ids[self._last] = block_ids
        request_id, choice = request.key
        load = LoadBlocks(self._last, request_id, choice, num_tokens, list(block_ids))
        self._unsent.append((num_steps, load))
        return self._last

    def abandon(self, request: Request) -> None:
        """The request does not want it any more."""
        assert request.transfer is not None
        self._requests[request.transfer] = None
        request.transfer = None

    def complete(self, transfer: int) -> tuple[Request | None, list[int]]:
        """It is over: who wanted it, if anybody still does, and its blocks; none if it is not known."""
        request = self._requests.pop(transfer, None)
        if request is not None:
            request.transfer = None
        return request, self._block_ids.pop(transfer, [])

    def waiting(self) -> list[Request]:
        """Requests that wait for theirs."""
        return [request for request in self._requests.values() if request is not None]

    def blocks(self) -> Mapping[int, list[int]]:
        """Of all live transfers, by number."""
        return self._block_ids

    def drain_unsent(self, num_steps: int) -> list[LoadBlocks]:
        """Those that the connector can be told of when so many steps have ended, and was not yet."""
        loads = []
        while self._unsent and self._unsent[0][0] <= num_steps:
            loads.append(self._unsent.popleft()[1])
        return loads
