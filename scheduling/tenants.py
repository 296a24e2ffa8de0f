"""How much each tenant has been served: the counters behind fair share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .row_arrays import Int32s, Int64s


class TenantCounters:
    """Virtual tokens by tenant: of its prompts at first admission, of its outputs as they come.

    Only differences mean anything. A tenant without live requests keeps its debt, but earns no credit: when it comes
    back it is lifted to the least served of those that are there. A paused session is not live here, for it asks for
    nothing. Tenants whose counter the lift would replace are forgotten, so nothing grows with the names that clients
    make up.
    """

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._tokens: Int64s = np.zeros(8, np.int64)
        self._num_live: Int64s = np.zeros(8, np.int64)
        self._free = list(range(7, -1, -1))

    def come(self, tenant: str) -> None:
        """One more live request."""
        index = self._index.get(tenant)
        if index is None:
            if not self._free:
                self._forget_idle()
            if not self._free:
                self._grow()
            index = self._index[tenant] = self._free.pop()
            self._tokens[index] = 0
        if not self._num_live[index] and (lowest := self._lowest_live()) is not None:
            self._tokens[index] = max(self._tokens[index], lowest)
        self._num_live[index] += 1

    def go(self, tenant: str) -> None:
        """One live request less."""
        self._num_live[self._index[tenant]] -= 1

    def index_of(self, tenant: str) -> int:
        """For `charge_rows`; good as long as it has a live request."""
        return self._index[tenant]

    def charge(self, tenant: str, num_tokens: int) -> None:
        """It has been served so many tokens."""
        self._tokens[self._index[tenant]] += num_tokens

    def charge_rows(self, indexes: Int32s) -> None:
        """[k] the tenants of k rows, each of which has had a token."""
        self._tokens += np.bincount(indexes, minlength=len(self._tokens))

    def served(self, tenants: Iterable[str]) -> dict[str, int]:
        """By tenant, of some that have live requests."""
        return {name: int(self._tokens[self._index[name]]) for name in tenants}

    def check_integrity(self, num_live: dict[str, int]) -> None:
        """Assert that the counts of live requests are these."""
        counted = {name: int(self._num_live[index]) for name, index in self._index.items() if self._num_live[index]}
        assert counted == num_live, f"live requests by tenant are {num_live}, counted {counted}"

    def _lowest_live(self) -> int | None:
        live = self._tokens[self._num_live > 0]
        return int(live.min()) if live.size else None

    def _forget_idle(self) -> None:
        """Those that a lift would bring to what they would have as newcomers."""
        lowest = self._lowest_live()
        for name, index in list(self._index.items()):
            if not self._num_live[index] and (lowest is None or self._tokens[index] <= lowest):
                del self._index[name]
                self._free.append(index)

    def _grow(self) -> None:
        size = len(self._tokens)
        self._free = list(range(2 * size - 1, size - 1, -1))
        self._tokens = np.concatenate([self._tokens, np.zeros(size, np.int64)])
        self._num_live = np.concatenate([self._num_live, np.zeros(size, np.int64)])
