"""Admission when the first chunk fits: the fullest pool, and the rest must be found while it runs."""

from __future__ import annotations

from ..kv_cache.block_pool import blocks_for
from .policy_views import AdmissionView
from .request import Request, RequestState
from .whole_prompt import blocks_of_all


def blocks_wanted(request: Request, num_cached_tokens: int, num_first_tokens: int, view: AdmissionView) -> int:
    """Blocks for the first chunk.

    A preempted request comes back only when all its tokens and the next one fit, or it would soon be preempted again.
    """
    if request.state is RequestState.PREEMPTED:
        return blocks_of_all(request, num_cached_tokens, num_first_tokens, view)
    num_cached_blocks = blocks_for(num_cached_tokens, view.block_size)
    return blocks_for(num_cached_tokens + num_first_tokens, view.block_size) - num_cached_blocks
