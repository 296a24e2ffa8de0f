"""What a result says of rows that yield no token: they are sampled like the others, for nobody, and left out."""

from __future__ import annotations

import numpy as np

from .input_batch import Int32s
from .sampler import Sampled
from .token_masks import Bools


def without_late_rows(sampled: Sampled, is_late: Bools | None) -> tuple[Sampled, Int32s | None]:
    """Of the k rows that sample: (what those yield that are not late, tokens of each row). The second is None, and all
    as it was, if no row is late; is_late: bool [k]."""
    if is_late is None or not is_late.any():
        return sampled, None
    num_sampled = (~is_late).astype(np.int32)
    token_ids, fields = sampled.token_ids[~is_late], sampled.logprobs
    if fields:
        rows = np.frombuffer(fields["logprob_rows"], np.int32)
        is_kept = ~is_late[rows]
        places = np.cumsum(num_sampled, dtype=np.int32) - 1
        fields = {
            "logprob_rows": places[rows[is_kept]].tobytes(),
            "logprobs": np.frombuffer(fields["logprobs"], np.float32)[is_kept].tobytes(),
            "top_ids": np.frombuffer(fields["top_ids"], np.int32).reshape(rows.size, -1)[is_kept].tobytes(),
            "top_logprobs": np.frombuffer(fields["top_logprobs"], np.float32).reshape(rows.size, -1)[is_kept].tobytes(),
        }
    return Sampled(token_ids, fields), num_sampled
