"""Small steps of every kind, so that the first request does not pay for first calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import NewRow, StepPlan


def warm_up_plans(block_size: int, max_model_len: int) -> Iterator[StepPlan]:
    """A prompt, then one more token if there is room for it, both sampled with all that sampling has; row 0, run 0 of
    an empty batch, block 0."""
    num_tokens = max(1, min(8, block_size - 1, max_model_len - 2))
    yield from row_plans(SamplingParams(seed=0, temperature=1.0, top_p=0.9, logprobs=1), num_tokens)
    if num_tokens < min(block_size, max_model_len):
        yield single_row_plan([], num_tokens, 1)


def row_plans(sampling: SamplingParams, num_tokens: int) -> Iterator[StepPlan]:
    """A prompt of `num_tokens` tokens, which block 0 holds."""
    row = NewRow(
        row=0,
        run=0,
        request_id="",
        choice=0,
        attempt=0,
        num_prompt_tokens=num_tokens,
        token_ids=np.zeros(num_tokens, np.int32).tobytes(),
        block_ids=np.zeros(1, np.int32).tobytes(),
        sampling=sampling,
    )
    yield single_row_plan([row], 0, num_tokens)


def single_row_plan(new_rows: list[NewRow], start: int, num_tokens: int) -> StepPlan:
    """Row 0, run 0, sampling."""
    return StepPlan(
        epoch=0,
        step=0,
        now_ns=0,
        new_rows=new_rows,
        removed_rows=b"",
        rows=np.zeros(1, np.int32).tobytes(),
        runs=np.zeros(1, np.int64).tobytes(),
        starts=np.array([start], np.int32).tobytes(),
        num_tokens=np.array([num_tokens], np.int32).tobytes(),
        samples=np.ones(1, np.bool_).tobytes(),
    )
