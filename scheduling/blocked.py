"""Whose turn it is, but not while blocks are short: its cached prefix is not looked up in every step that passes."""

from __future__ import annotations

from ..kv_cache.block_pool import BlockPool
from .request import Request


class BlockedRequest:
    """The last request for which there was no room, and what the cache had of it. It only saves work."""

    def __init__(self) -> None:
        self._of: object = None
        self._cached: list[int] = []
        self._missing_key: bytes | None = None

    def note(self, request: Request, cached: list[int]) -> None:
        """There was no room for it, and the cache had its first blocks, these."""
        keys = request.block_keys.known
        self._of = (request.key, request.attempt, request.num_tokens)
        self._cached = cached
        self._missing_key = keys[len(cached)] if len(cached) < len(keys) else None

    def most_cached(self, pool: BlockPool, request: Request) -> list[int] | None:
        """Blocks of which some may have been taken for other content meanwhile, but more of it are not in the cache;
        None if that is not known."""
        is_known = self._of == (request.key, request.attempt, request.num_tokens)
        if not is_known or (self._missing_key is not None and pool.has_key(self._missing_key)):
            return None
        return self._cached
