"""Whose turn it is, but not while blocks are short: its cached prefix is not looked up in every step that passes."""

from __future__ import annotations

from typing import NamedTuple

from ..kv_cache.block_pool import BlockPool
from .request import Request, RequestKey


class _Blocked(NamedTuple):
    key: RequestKey
    attempt: int
    num_free: int
    budget: int
    missing_key: bytes | None
    """Of the first full block of its tokens that the cache did not have."""


class BlockedRequest:
    """The last request for which there was no room while others ran, and how things stood. It only saves work."""

    def __init__(self) -> None:
        self._last: _Blocked | None = None

    def note(self, pool: BlockPool, request: Request, budget: int, num_cached_blocks: int) -> None:
        """There was no room for it under this token budget, and the cache had its first blocks."""
        keys = request.block_keys.known
        missing_key = keys[num_cached_blocks] if num_cached_blocks < len(keys) else None
        self._last = _Blocked(request.key, request.attempt, pool.num_free, budget, missing_key)

    def forget(self) -> None:
        """What was noted holds no longer."""
        self._last = None

    def is_still(self, pool: BlockPool, request: Request, budget: int) -> bool:
        """Nothing has become better for it: no more blocks are free, no more of it is in the cache, no smaller first
        chunk would do."""
        last = self._last
        return (
            last is not None
            and (last.key, last.attempt) == (request.key, request.attempt)
            and pool.num_free <= last.num_free
            and budget >= last.budget
            and not (last.missing_key is not None and pool.has_key(last.missing_key))
        )
