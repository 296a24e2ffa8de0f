"""The ledgers of requests that have ended, kept for questions: a ring by request id."""

from __future__ import annotations

from collections import OrderedDict

from ..mailbox.messages.requests import RequestLedger


class EndedLedgers:
    """At most `max_ledgers`; choices of one request stay and go together, the request that ended longest ago first.

    The request that ended last always stays, unless `max_ledgers` is 0.
    """

    def __init__(self, max_ledgers: int) -> None:
        self._max_ledgers = max_ledgers
        self._by_request: OrderedDict[str, dict[int, RequestLedger]] = OrderedDict()
        self._num_ledgers = 0

    def __len__(self) -> int:
        return self._num_ledgers

    def add(self, request_id: str, ledger: RequestLedger) -> None:
        """A choice ended; a ledger of the same choice, of an earlier life of the request, gives way."""
        choices = self._by_request.setdefault(request_id, {})
        self._num_ledgers += ledger.choice not in choices
        choices[ledger.choice] = ledger
        self._by_request.move_to_end(request_id)
        while self._num_ledgers > self._max_ledgers and len(self._by_request) > min(1, self._max_ledgers):
            _, dropped = self._by_request.popitem(last=False)
            self._num_ledgers -= len(dropped)

    def of_request(self, request_id: str) -> dict[int, RequestLedger]:
        """By choice; empty if none is kept."""
        return dict(self._by_request.get(request_id, {}))
