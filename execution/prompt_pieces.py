"""Which tokens of prompts a step can tell the log-probabilities of: those behind the positions that it computes.

The position before a token predicts it, so the last position of a chunk predicts the first token of the next chunk,
which the row has already. The first token of a prompt is predicted by nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..mailbox.messages.steps import PromptLogprobs
from .input_batch import InputBatch, Int32s, Int64s
from .prepare_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class PromptPieces:
    """p pieces, each of consecutive tokens of one row's prompt, m tokens together, piece after piece."""

    runs: Int64s
    """[p]"""
    starts: Int32s
    """[p]: position of the piece's first token, >= 1."""
    counts: Int32s
    """[p], each >= 1"""
    token_ids: Int64s
    """[m]"""
    predictors: Int64s
    """[m]: index in the step's flat list of the position before each token."""
    num_top: int
    """The most alternatives that one of the rows asks for."""

    def encode(
        self, logprobs: NDArray[np.float32], ranks: Int32s, top_ids: Int32s, top_logprobs: NDArray[np.float32]
    ) -> PromptLogprobs:
        """logprobs, ranks: [m]; top_ids, top_logprobs: [m, num_top]"""
        return PromptLogprobs(
            runs=self.runs.tobytes(),
            starts=self.starts.tobytes(),
            counts=self.counts.tobytes(),
            logprobs=logprobs.tobytes(),
            ranks=ranks.tobytes(),
            top_ids=top_ids.tobytes(),
            top_logprobs=top_logprobs.tobytes(),
        )


def find_prompt_pieces(batch: InputBatch, inputs: StepInputs) -> PromptPieces | None:
    """None if no scheduled row asks for log-probabilities of a prompt that it computes a part of."""
    asks = batch.sampling.has_prompt_logprobs[inputs.rows]
    if not asks.any():
        return None
    counts = np.minimum(inputs.num_tokens, batch.num_prompt_tokens[inputs.rows] - 1 - inputs.starts)
    index = np.flatnonzero(asks & (counts > 0))
    if not index.size:
        return None
    rows, counts, firsts = inputs.rows[index], counts[index], inputs.starts[index] + 1
    begins = np.cumsum(counts) - counts
    offsets = np.arange(counts.sum()) - np.repeat(begins, counts)
    return PromptPieces(
        runs=batch.run[rows],
        starts=firsts,
        counts=counts,
        token_ids=batch.token_ids[np.repeat(rows, counts), np.repeat(firsts, counts) + offsets].astype(np.int64),
        predictors=np.repeat(inputs.query_starts[index], counts) + offsets,
        num_top=int(batch.sampling.num_prompt_logprobs[rows].max()),
    )
