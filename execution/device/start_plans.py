"""Steps for the start: the one that needs most memory beside weights and KV, with as many tokens and as many sampled
rows as there may be, each with all that sampling has; and small ones of every form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...mailbox.messages.sampling import SamplingParams
from ...mailbox.messages.steps import NewRow, StepPlan
from .limits import RunnerLimits

_SAMPLING = SamplingParams(
    seed=0,
    temperature=1.0,
    top_p=0.9,
    min_p=0.01,
    logprobs=20,
    prompt_logprobs=20,
    repetition_penalty=1.1,
    processed_logprobs=True,
)


def blocks_of_largest_step(limits: RunnerLimits, block_size: int) -> int:
    """Blocks that `largest_step` names."""
    return -(-_longest(limits) // block_size)


def largest_step(limits: RunnerLimits, block_size: int) -> StepPlan:
    """Row 0 has the longest piece of a prompt that fits beside one token of each other row; what they write into the
    blocks that they share does not matter."""
    return _plan([_longest(limits), *[1] * (_num_rows(limits) - 1)], block_size, _SAMPLING)


def prompt_plans(limits: RunnerLimits, block_size: int, num_blocks: int) -> Iterator[StepPlan]:
    """A prompt of 2, 4, 8, ... 128 tokens beside 0, 1, 3, 7, ... rows of one token, and beside all; each for an empty
    batch. Kernels are made for powers of two of rows, and of tokens of the longest."""
    longest = min(limits.max_model_len, num_blocks * block_size)
    for length in (2, 4, 8, 16, 32, 64, 128):
        for num_rows in _row_counts(limits):
            if length <= longest and num_rows + length - 1 <= limits.max_num_batched_tokens:
                lengths = [length] + [1] * (num_rows - 1)
                yield _plan(lengths, block_size, SamplingParams(seed=0, temperature=0.0))


def _row_counts(limits: RunnerLimits) -> list[int]:
    most = limits.max_num_seqs
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _plan(lengths: list[int], block_size: int, sampling: SamplingParams) -> StepPlan:
    """Prompts of these lengths, which share blocks."""
    new_rows = [
        NewRow(
            row=row,
            run=row,
            request_id="",
            choice=0,
            attempt=0,
            num_prompt_tokens=length,
            token_ids=np.zeros(length, np.int32).tobytes(),
            block_ids=np.arange(-(-length // block_size), dtype=np.int32).tobytes(),
            sampling=sampling,
        )
        for row, length in enumerate(lengths)
    ]
    rows = np.arange(len(lengths), dtype=np.int32)
    return StepPlan(
        epoch=0,
        step=0,
        now_ns=0,
        new_rows=new_rows,
        removed_rows=b"",
        rows=rows.tobytes(),
        runs=rows.astype(np.int64).tobytes(),
        starts=np.zeros_like(rows).tobytes(),
        num_tokens=np.array(lengths, np.int32).tobytes(),
        samples=np.ones(rows.size, np.bool_).tobytes(),
    )


def _longest(limits: RunnerLimits) -> int:
    return min(limits.max_num_batched_tokens - _num_rows(limits) + 1, limits.max_model_len)


def _num_rows(limits: RunnerLimits) -> int:
    return min(limits.max_num_seqs, limits.max_num_batched_tokens)
