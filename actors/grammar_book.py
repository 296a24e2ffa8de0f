"""Compiled grammars by key, and who uses them."""

from __future__ import annotations

from collections import Counter, OrderedDict

from ..structured_output.backend import CompiledGrammar

Fate = CompiledGrammar | str
"""A sentence: why it cannot be compiled."""


class GrammarBook:
    """What no request uses any more stays for the next one that wants it, up to `max_unused` of them and
    `max_unused_bytes` of memory; the ones that were used last stay longest."""

    def __init__(self, max_unused: int, max_unused_bytes: int) -> None:
        self._max_unused = max_unused
        self._max_unused_bytes = max_unused_bytes
        self._fates: OrderedDict[str, Fate] = OrderedDict()
        self._users: dict[str, Counter[str]] = {}
        """Key -> requests by tokenizer."""
        self._sizes: dict[str, int] = {}
        """Bytes of each."""
        self._num_unused = 0
        self._num_unused_bytes = 0

    def find(self, key: str) -> Fate | None:
        """None: it is not known."""
        return self._fates.get(key)

    def settle(self, key: str, fate: Fate, num_bytes: int) -> None:
        """It was compiled, or cannot be. `num_bytes`: about what it takes of memory."""
        assert key not in self._fates, f"grammar {key} is compiled twice"
        self._fates[key] = fate
        self._sizes[key] = num_bytes
        if key not in self._users:
            self._count_unused(key, 1)
            self._forget()

    def use(self, key: str, tokenizer: str) -> None:
        """One request more."""
        if key not in self._users:
            self._users[key] = Counter()
            if key in self._fates:
                self._count_unused(key, -1)
        self._users[key][tokenizer] += 1

    def release(self, key: str, tokenizer: str) -> None:
        """One request less; one that is not known is no matter."""
        users = self._users.get(key)
        if users is not None and users[tokenizer] > 0:
            users[tokenizer] -= 1
            self._drop_users(key, users)

    def lose_tokenizer(self, tokenizer: str) -> None:
        """Its requests come again, through another one."""
        for key, users in list(self._users.items()):
            users.pop(tokenizer, None)
            self._drop_users(key, users)

    def _drop_users(self, key: str, users: Counter[str]) -> None:
        if users.total() == 0:
            del self._users[key]
            if key in self._fates:
                self._fates.move_to_end(key)
                self._count_unused(key, 1)
                self._forget()

    def _count_unused(self, key: str, change: int) -> None:
        self._num_unused += change
        self._num_unused_bytes += change * self._sizes[key]

    def _forget(self) -> None:
        while self._num_unused > self._max_unused or self._num_unused_bytes > self._max_unused_bytes:
            key = next(key for key in self._fates if key not in self._users)
            del self._fates[key]
            self._count_unused(key, -1)
            del self._sizes[key]
