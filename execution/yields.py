"""What a step yields of what it sampled: not every token that was drawn counts.

A row draws behind its last token and behind each of its drafts; what stands behind a draft that is not accepted is for
nobody. Nor is what a constrained row draws without its mask, or behind such a place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..mailbox.messages.steps import PromptLogprobs, StepPlan, StepResult
from ..speculative.acceptance import count_accepted, first_places
from .input_batch import InputBatch, Int32s, Int64s
from .prepare_inputs import StepInputs
from .sampler import Sampled

Bools = NDArray[np.bool_]


class Yields(NamedTuple):
    """The fields of `StepResult` about tokens, of the r rows of a step that sample."""

    runs: bytes
    positions: bytes
    token_ids: bytes
    num_sampled: bytes
    num_drafted: bytes
    logprobs: dict[str, bytes]
    """Those about log-probabilities; empty if no row asks."""


NO_YIELDS = Yields(b"", b"", b"", b"", b"", {})
"""Of a step in which no row samples."""


def take_yields(
    batch: InputBatch,
    inputs: StepInputs,
    sampled: Sampled,
    is_late: Bools | None = None,
    *,
    stays: bool = False,
) -> Yields:
    """Write the tokens that count into the batch, and tell them. sampled: of the k places that were drawn for; is_late:
    bool [k], those of constrained rows without a mask. Such a row has a token in the batch all the same, since plans
    that were made before this result count on one; unless plans go on where it stands: then it stays there.
    """
    rows, positions, counts = inputs.sample_rows, inputs.sample_positions, inputs.sample_counts
    if counts is None:
        if stays and is_late is not None:
            batch.write_sampled(rows[~is_late], positions[~is_late], sampled.token_ids[~is_late])
        else:
            batch.write_sampled(rows, positions, sampled.token_ids)
        return single_yields(inputs.sample_runs, positions, sampled, is_late)
    taken = count_accepted(sampled.token_ids, batch.token_ids[rows, positions], counts)
    firsts = np.cumsum(counts) - counts
    if is_late is not None and is_late.any():
        places = np.arange(is_late.size) - np.repeat(firsts, counts)
        first_late = np.minimum.reduceat(np.where(is_late, places, is_late.size), firsts)
        if not stays:
            first_late = np.where(first_late, first_late, 1)
        taken = np.minimum(taken, first_late).astype(np.int32)
    is_taken = first_places(taken, counts)
    batch.write_sampled(rows[is_taken], positions[is_taken], sampled.token_ids[is_taken])
    if is_late is not None and not stays:
        is_taken &= ~is_late
        taken = np.where(is_late[firsts], np.int32(0), taken)
    sampled = _only(sampled, is_taken)
    return Yields(
        inputs.sample_runs[firsts].tobytes(),
        positions[firsts].tobytes(),
        sampled.token_ids.tobytes(),
        taken.tobytes(),
        (counts - np.int32(1)).tobytes(),
        sampled.logprobs,
    )


def single_yields(
    runs: Int64s, positions: Int32s, sampled: Sampled, is_late: Bools | None = None, *, were_drafts_asked: bool = False
) -> Yields:
    """Of r rows that sample once, [r] each: they had no drafts; were_drafts_asked: though they might have."""
    num_sampled, num_drafted = b"", b""
    if is_late is not None and is_late.any():
        sampled, num_sampled = _only(sampled, ~is_late), (~is_late).astype(np.int32).tobytes()
    elif were_drafts_asked:
        num_sampled = np.ones(runs.size, np.int32).tobytes()
    if were_drafts_asked:
        num_drafted = np.zeros(runs.size, np.int32).tobytes()
    return Yields(
        runs.tobytes(),
        positions.tobytes(),
        sampled.token_ids.tobytes(),
        num_sampled,
        num_drafted,
        sampled.logprobs,
    )


def result_of(
    plan: StepPlan,
    yields: Yields,
    start_ns: int,
    end_ns: int,
    of_prompts: PromptLogprobs | None,
    next_drafts: Mapping[str, bytes] | None = None,
) -> StepResult:
    """The result of a step that lasted from `start_ns` to `end_ns`, by the monotonic clock; next_drafts: its fields
    about them."""
    result = StepResult(
        epoch=plan.epoch,
        step=plan.step,
        runs=yields.runs,
        positions=yields.positions,
        token_ids=yields.token_ids,
        start_ns=start_ns,
        end_ns=end_ns,
        prompt_logprobs=of_prompts,
        num_sampled=yields.num_sampled,
        num_drafted=yields.num_drafted,
    )
    more = {**yields.logprobs, **(next_drafts or {})}
    return msgspec.structs.replace(result, **more) if more else result


def _only(sampled: Sampled, is_kept: Bools) -> Sampled:
    """is_kept: bool [k]"""
    token_ids, fields = sampled.token_ids[is_kept], sampled.logprobs
    if fields:
        rows = np.frombuffer(fields["logprob_rows"], np.int32)
        is_told = is_kept[rows]
        places = np.cumsum(is_kept, dtype=np.int32) - np.int32(1)
        fields = {
            "logprob_rows": places[rows[is_told]].tobytes(),
            "logprobs": np.frombuffer(fields["logprobs"], np.float32)[is_told].tobytes(),
            "top_ids": np.frombuffer(fields["top_ids"], np.int32).reshape(rows.size, -1)[is_told].tobytes(),
            "top_logprobs": np.frombuffer(fields["top_logprobs"], np.float32).reshape(rows.size, -1)[is_told].tobytes(),
        }
    return Sampled(token_ids, fields)
