"""What each row of the batch asks of sampling on a device: what its kernels do, and what torch does beside them.

In the kernels: temperature, filters, penalties, bias, log-probabilities. Beside them, so in no graph: bad words,
`allowed_token_ids` and `min_tokens`, whose ids the host lists for each step; more biases, or more most likely tokens,
than the device has columns for. What a constrained row forbids is taken out of its mask before the device has it.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...kernels.gpu.sampling import SamplingKind
from ...kernels.gpu.sampling_rows import MAX_TOP, Column, Flag, encode_parameters, split_seeds
from ...mailbox.messages.sampling import SamplingParams
from ...mailbox.messages.steps import StepPlan
from ..input_batch import InputBatch, Int32s
from ..row_logits import has_penalties, has_row_logits
from ..token_counts import Float32s

_FOR_EVER = np.iinfo(np.int32).max
MAX_BIAS = 1024
"""Biases of a row that the device holds."""


class RowDemands:
    """By row of the batch; bool [max_num_seqs] each."""

    def __init__(self, batch: InputBatch, vocab_size: int) -> None:
        self._batch, self._vocab_size = batch, vocab_size

        def none() -> NDArray[np.bool_]:
            return np.zeros(batch.max_num_seqs, np.bool_)

        self.has_penalties, self.has_changes = none(), none()
        self.masked_until: Int32s = np.zeros(batch.max_num_seqs, np.int32)
        """The host has a part in the row's logits before this position: `min_tokens` is a matter of the first ones."""
        self._num_bias: Int32s = np.zeros(batch.max_num_seqs, np.int32)
        self._penalties: Float32s = np.zeros((batch.max_num_seqs, 3), np.float32)
        """Repetition, frequency, presence."""

    def kind(self, rows: Int32s) -> SamplingKind:
        """Of a step in which these rows sample."""
        arrays = self._batch.sampling
        draws = arrays.temperature[rows] > 0
        filters = (arrays.top_k[rows] > 0) | (arrays.top_p[rows] < 1.0) | (arrays.min_p[rows] > 0.0)
        return SamplingKind(
            has_draws=bool(draws.any()),
            has_filters=bool((draws & filters).any()),
            has_changes=bool(self.has_changes[rows].any()),
            has_penalties=bool(self.has_penalties[rows].any()),
            has_logprobs=bool(arrays.has_logprobs[rows].any()),
            has_masks=bool(self._batch.is_constrained[rows].any()),
        )

    def is_recordable(self, rows: Int32s, positions: Int32s) -> bool:
        """Whether a step in which these rows sample the tokens at `positions` is the same work whatever they are; once
        it is, it stays so for the rows as long as they go on."""
        too_many = self._batch.sampling.num_logprobs[rows] > MAX_TOP
        return not bool(((positions < self.masked_until[rows]) | too_many).any())

    def place(self, plan: StepPlan) -> StepPlan:
        """Take over the new rows of a plan that the batch has applied; returns the plan with what is left to
        `LogitChanges` of each new row's logits."""
        return msgspec.structs.replace(
            plan,
            new_rows=[
                msgspec.structs.replace(new, sampling=self._place(new.row, new.sampling)) for new in plan.new_rows
            ],
        )

    def biases(self, sampling: SamplingParams) -> list[tuple[int, float]]:
        """Those of ids in the vocabulary."""
        return [(token_id, value) for token_id, value in sampling.logit_bias if 0 <= token_id < self._vocab_size]

    def has_repetition(self, row: int) -> bool:
        """Whether the prompt's tokens are penalised, too."""
        return bool(self._penalties[row, 0] != 1.0)

    def parameters(self, rows: Int32s) -> Int32s:
        """[r, NUM_COLUMNS]: the rows' parameters as the device has them."""
        batch, arrays = self._batch, self._batch.sampling
        flags = Flag.PROCESSED_LOGPROBS * arrays.has_processed_logprobs[rows]
        flags = flags + Flag.CHANGED * self.has_changes[rows] + Flag.PENALIZED * self.has_penalties[rows]
        with np.errstate(divide="ignore"):
            least = np.log(arrays.min_p[rows])
        return encode_parameters(
            rows.size,
            {
                Column.TEMPERATURE: arrays.temperature[rows],
                Column.TOP_K: np.minimum(arrays.top_k[rows], self._vocab_size),
                Column.TOP_P: arrays.top_p[rows],
                Column.MIN_LOGIT: least,
                Column.CHOICE: arrays.choice[rows],
                Column.INDEX_ORIGIN: batch.index_origins[rows],
                Column.NUM_TOP: np.where(arrays.has_logprobs[rows], arrays.num_logprobs[rows], -1),
                Column.FLAGS: flags,
                Column.REPETITION: self._penalties[rows, 0],
                Column.FREQUENCY: self._penalties[rows, 1],
                Column.PRESENCE: self._penalties[rows, 2],
                Column.NUM_BIAS: self._num_bias[rows],
                **split_seeds(arrays.seed[rows]),
            },
        )

    def _place(self, row: int, sampling: SamplingParams) -> SamplingParams:
        num_bias = len(self.biases(sampling))
        is_left = num_bias > MAX_BIAS
        rest = sampling if is_left else _without_bias_and_penalties(sampling)
        self._num_bias[row] = 0 if is_left else num_bias
        self.has_penalties[row] = has_penalties(sampling) and not is_left
        penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self._penalties[row] = penalties
        is_constrained = bool(self._batch.is_constrained[row])
        self.has_changes[row] = has_row_logits(sampling) or is_constrained
        self.masked_until[row] = 0
        if has_row_logits(rest) and not (is_constrained and not is_left):
            first = int(self._batch.num_prompt_tokens[row])
            is_for_ever = has_row_logits(msgspec.structs.replace(rest, min_tokens=0))
            self.masked_until[row] = _FOR_EVER if is_for_ever else first + rest.min_tokens
        return rest


def _without_bias_and_penalties(sampling: SamplingParams) -> SamplingParams:
    return msgspec.structs.replace(
        sampling, logit_bias=(), presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0
    )
