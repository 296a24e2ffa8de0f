"""What a step yields of what it sampled: not every token that was drawn counts.

A row draws behind its last token and behind each of its drafts; what stands behind a draft that is not accepted is for
nobody. Nor is what a constrained row draws without its mask: it yields no token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..speculative.acceptance import count_coupled, first_places
from .input_batch import InputBatch, Int32s
from .prepare_inputs import StepInputs
from .sampler import Sampled

Bools = NDArray[np.bool_]
NO_YIELDS = {"runs": b"", "positions": b"", "token_ids": b""}
"""The fields of a result without rows."""


def take_yields(
    batch: InputBatch, inputs: StepInputs, sampled: Sampled, is_late: Bools | None = None
) -> dict[str, bytes]:
    """Write the tokens that count into the batch; returns the fields of `StepResult` about them, log-probabilities
    included. sampled: of the k places that were drawn for; is_late: bool [k], those of constrained rows without a mask.
    Such a row has a token in the batch all the same: plans that were made before this result count on one."""
    rows, positions, counts = inputs.sample_rows, inputs.sample_positions, inputs.sample_counts
    if counts is None:
        batch.write_sampled(rows, positions, sampled.token_ids)
        sampled, num_sampled = without_late_rows(sampled, is_late)
        return _fields(inputs, sampled, num_sampled)
    taken = count_coupled(sampled.token_ids, batch.token_ids[rows, positions], counts)
    is_taken = first_places(taken, counts)
    batch.write_sampled(rows[is_taken], positions[is_taken], sampled.token_ids[is_taken])
    if is_late is not None:
        is_taken &= ~is_late
        taken = np.where(is_late[np.cumsum(counts) - counts], np.int32(0), taken)  # they have no drafts
    sampled = _only(sampled, is_taken)
    return _fields(inputs, sampled, taken, num_drafted=counts - np.int32(1))


def without_late_rows(sampled: Sampled, is_late: Bools | None) -> tuple[Sampled, Int32s | None]:
    """Of k rows that sample once: (what those yield that are not late, tokens of each row). The second is None, and all
    as it was, if no row is late; is_late: bool [k]."""
    if is_late is None or not is_late.any():
        return sampled, None
    return _only(sampled, ~is_late), (~is_late).astype(np.int32)


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


def _fields(
    inputs: StepInputs, sampled: Sampled, num_sampled: Int32s | None, num_drafted: Int32s | None = None
) -> dict[str, bytes]:
    """num_sampled, num_drafted: int32 [r]"""
    counts = inputs.sample_counts
    firsts = slice(None) if counts is None else np.cumsum(counts) - counts
    fields = {
        "runs": inputs.sample_runs[firsts].tobytes(),
        "positions": inputs.sample_positions[firsts].tobytes(),
        "token_ids": sampled.token_ids.tobytes(),
    }
    if num_sampled is not None:
        fields["num_sampled"] = num_sampled.tobytes()
    if num_drafted is not None:
        fields["num_drafted"] = num_drafted.tobytes()
    return fields | sampled.logprobs
