"""Keys and values on their way from elsewhere: blocks that belong to a transfer until it is over."""

from __future__ import annotations

from collections.abc import Mapping

from ..mailbox.messages.transfers import LoadBlocks
from .request import Request


class Transfers:
    """Live transfers by number. The blocks of one stay its own even if its request ends, for they are written to."""

    def __init__(self) -> None:
        self._last = 0
        self._requests: dict[int, Request | None] = {}
        self._block_ids: dict[int, list[int]] = {}
        self._unsent: list[LoadBlocks] = []

    def begin(self, request: Request, num_tokens: int, block_ids: list[int]) -> int:
        """Load the first `num_tokens` positions of the request into these blocks. Returns the transfer's number."""
        self._last += 1
        request.transfer = self._last
        self._requests[self._last] = request
        self._block_ids[self._last] = block_ids
        request_id, choice = request.key
        self._unsent.append(LoadBlocks(self._last, request_id, choice, num_tokens, list(block_ids)))
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

    def drain_unsent(self) -> list[LoadBlocks]:
        """Those that the connector was not told of yet."""
        unsent, self._unsent = self._unsent, []
        return unsent
