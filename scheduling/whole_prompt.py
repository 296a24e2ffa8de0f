"""Admission when all known tokens fit: no request begins that could not finish its prompt."""

from __future__ import annotations

from ..kv_cache.block_pool import blocks_for
from .policy_views import AdmissionView
from .request import Request


def blocks_wanted(request: Request, num_cached_tokens: int, num_first_tokens: int, view: AdmissionView) -> int:
    """Blocks for all known tokens and the next one, as far as the pool has so many."""
    del num_first_tokens  # among the known ones
    num_blocks = min(blocks_for(request.num_tokens + 1, view.block_size), view.num_blocks)
    return num_blocks - blocks_for(num_cached_tokens, view.block_size)
