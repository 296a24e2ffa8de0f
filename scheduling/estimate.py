"""Admission when what all are likely to write fits: an estimate that decays, and rises when it proved too low.

The idea of SGLang's `new_token_ratio`: of the output that a request may still write, a share is taken to be written.
The share sinks a little with each step, so that more and more are admitted, until blocks run out and somebody is
retracted; then it rises to what those that still run have really written of what they may.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..kv_cache.block_pool import blocks_for
from .policy_views import AdmissionView, Estimate
from .request import Request

ONE_PPM = 1_000_000
START = Estimate(share_ppm=700_000)
FLOOR_PPM = 100_000
DECAY_STEPS = 600
"""Steps from START down to the floor."""
MAX_OUTPUT = 4096
"""Tokens of output beyond the known ones that are reckoned with at most: many clients allow far more than they use."""
AHEAD = 20
"""Tokens that each request is taken to have written beyond the known ones when the share is measured."""

_DECAY_PPM = (START.share_ppm - FLOOR_PPM) // DECAY_STEPS


def decayed(estimate: Estimate, num_steps: int = 1) -> Estimate:
    """So many steps later."""
    return Estimate(max(FLOOR_PPM, estimate.share_ppm - num_steps * _DECAY_PPM))


def after_retract(estimate: Estimate, running: Sequence[Request]) -> Estimate:
    """Raised to the share that the requests which still run have written of what they may; never lowered.

    What they may write is counted as in `blocks_wanted`, so that a limit which nobody reaches does not hide how much is
    written.
    """
    num_written = sum(request.num_output_tokens + AHEAD for request in running)
    num_allowed = sum(request.num_output_tokens + _num_reckoned(request) for request in running)
    measured = num_written * ONE_PPM // max(1, num_allowed) if running else 0
    return Estimate(max(estimate.share_ppm, min(ONE_PPM, measured)))


def blocks_wanted(request: Request, num_cached_tokens: int, num_first_tokens: int, view: AdmissionView) -> int:
    """Blocks for its known tokens and its estimated output, and for what those that run are estimated to lack.

    When nothing runs it is capped at the pool, so it is admitted into an empty one.
    """
    del num_first_tokens  # among the known ones
    running, size, share_ppm = view.running(), view.block_size, view.estimate.share_ppm
    num_reckoned = np.clip(running.max_total - running.num_tokens, 0, MAX_OUTPUT)
    num_expected = running.num_tokens + np.maximum(1, -(-num_reckoned * share_ppm // ONE_PPM))
    num_lacking = np.maximum(0, -(-num_expected // size) - running.num_blocks)
    num_blocks = blocks_for(_num_expected(request, view.estimate), size) + int(num_lacking.sum())
    return min(num_blocks, view.num_blocks) - blocks_for(num_cached_tokens, view.block_size)


def _num_reckoned(request: Request) -> int:
    """Output tokens that it may still write, as far as they are reckoned with."""
    return min(MAX_OUTPUT, max(0, request.max_total_tokens - request.num_tokens))


def _num_expected(request: Request, estimate: Estimate) -> int:
    """Tokens that it will have: the known ones, the next one, and its share of the others, rounded up."""
    num_written = -(-_num_reckoned(request) * estimate.share_ppm // ONE_PPM)
    return request.num_tokens + max(1, num_written)
