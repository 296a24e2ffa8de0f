"""Admission when all prompts fit: nobody begins whose prompt could not be finished beside those of the others."""

from __future__ import annotations

import numpy as np

from ..kv_cache.block_pool import blocks_for
from .policy_views import AdmissionView
from .request import Request


def blocks_wanted(request: Request, num_cached_tokens: int, num_first_tokens: int, view: AdmissionView) -> int:
    """Blocks for all known tokens and the next one, and those that running prompts in chunks still lack.

    As far as the pool has so many, so it is admitted when nothing runs.
    """
    num_blocks = blocks_of_all(request, num_cached_tokens, num_first_tokens, view)
    running = view.running()
    num_blocks += int(np.maximum(0, -(-running.num_tokens // view.block_size) - running.num_blocks).sum())
    return min(num_blocks, view.num_blocks - blocks_for(num_cached_tokens, view.block_size))


def blocks_of_all(request: Request, num_cached_tokens: int, _num_first_tokens: int, view: AdmissionView) -> int:
    """Blocks for all its known tokens and the next one, whoever runs, as far as the pool has so many."""
    num_blocks = min(blocks_for(request.num_tokens + 1, view.block_size), view.num_blocks)
    return num_blocks - blocks_for(num_cached_tokens, view.block_size)
