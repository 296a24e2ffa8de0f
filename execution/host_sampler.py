"""Sampling on numpy's arrays, for a model that is compiled for the CPU: greedy rows at once, others one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..kernels.cpu.quantized_rows import Float32s
from ..kernels.cpu.rejection import verify
from ..kernels.cpu.sampling import choose, kept_threshold, logprobs_of, most_likely, process_temperature
from ..kernels.cpu.token_bitmask import apply_token_bitmask
from ..mailbox.messages.steps import PromptLogprobs, StepPlan
from ..speculative.acceptance import NO_DRAFT
from .input_batch import InputBatch, Int32s
from .logit_changes import LogitChanges
from .logprob_arrays import LogprobArrays
from .prepare_inputs import StepInputs
from .prompt_pieces import PromptPieces
from .sampler import Sampled
from .token_masks import TokenMasks

PIECE_LOGITS = 1 << 21
"""Logits whose log-probabilities are made at a time, in whole rows."""


class HostSampler:
    """`compute_logits`: [k, hidden_size] -> float32 [k, vocab_size], valid until the next call."""

    def __init__(self, compute_logits: Callable[[Float32s], Float32s], batch: InputBatch, vocab_size: int) -> None:
        self._compute_logits, self._batch, self._vocab_size = compute_logits, batch, vocab_size
        self.logit_changes = LogitChanges(batch, vocab_size, lambda array: array, apply_token_bitmask)

    def apply(self, plan: StepPlan) -> None:
        self.logit_changes.apply(plan)

    def clear(self) -> None:
        self.logit_changes.clear()

    def sample(
        self,
        hidden: Float32s,
        inputs: StepInputs,
        masks: TokenMasks | None = None,
        drafts: Int32s | None = None,
        proposed: Float32s | None = None,
    ) -> Sampled:
        logits = self._compute_logits(hidden[inputs.last_tokens])
        with np.errstate(all="ignore"):  # what requests ask for may be infinite
            raw = self.logit_changes.change(logits, inputs, masks)
            token_ids = self._choose(logits, inputs, drafts, proposed)
            return Sampled(token_ids, self._logprobs(logits, raw, token_ids, inputs))

    def draw(self, hidden: Float32s, inputs: StepInputs, *, with_probs: bool) -> tuple[Int32s, Float32s | None]:
        """See `DraftSampler.draw`."""
        logits = self._compute_logits(hidden[inputs.last_tokens])
        with np.errstate(all="ignore"):
            token_ids = self._choose(logits, inputs, None, None)
            if not with_probs:
                return token_ids, None
            probs = np.zeros_like(logits)
            for index, row in enumerate(inputs.sample_rows.tolist()):
                processed, threshold = self._processed(logits[index], row)
                probs[index] = np.where(processed >= threshold, np.exp(processed), np.float32(0.0))
            probs /= probs.sum(axis=1, keepdims=True)
        return token_ids, probs

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Float32s) -> PromptLogprobs:
        arrays = LogprobArrays(pieces.token_ids.size, pieces.num_top, self._vocab_size)
        ranks = np.empty(pieces.token_ids.size, np.int32)
        at_once = self._rows_at_once()
        for start in range(0, ranks.size, at_once):
            part = slice(start, start + at_once)
            logits, token_ids = self._compute_logits(hidden[pieces.predictors[part]]), pieces.token_ids[part]
            ranks[part] = 1 + (logits > logits[np.arange(len(logits)), token_ids, None]).sum(axis=1)
            _fill(arrays, start, logits, token_ids)
        return pieces.encode(arrays.logprobs, ranks, arrays.top_ids, arrays.top_logprobs)

    def _choose(self, logits: Float32s, inputs: StepInputs, drafts: Int32s | None, proposed: Float32s | None) -> Int32s:
        """int32 [k]"""
        of_drafts = np.zeros(0, np.int64) if drafts is None else np.cumsum(drafts != NO_DRAFT) - 1
        arrays, rows = self._batch.sampling, inputs.sample_rows
        token_ids: Int32s = logits.argmax(axis=1).astype(np.int32)
        for index in np.flatnonzero(arrays.temperature[rows]).tolist():
            row = int(rows[index])
            processed, threshold = self._processed(logits[index], row)
            place = int(inputs.sample_positions[index]) - int(self._batch.index_origins[row])
            numbers = int(arrays.seed[row]), place, int(arrays.choice[row])
            if drafts is None or drafts[index] == NO_DRAFT:
                token_ids[index] = choose(processed, threshold, *numbers)
            else:
                drawn_from = None if proposed is None else proposed[of_drafts[index]]
                token_ids[index] = verify(processed, threshold, int(drafts[index]), *numbers, drawn_from)
        return token_ids

    def _processed(self, logits: Float32s, row: int) -> tuple[Float32s, np.float32]:
        """(float32 [vocab] after temperature, the least that filters keep) of a row; a greedy row's as they come."""
        arrays = self._batch.sampling
        temperature = float(arrays.temperature[row])
        if not temperature:
            return process_temperature(logits, 1.0), np.float32(-np.inf)
        processed = process_temperature(logits, temperature)
        filters = int(arrays.top_k[row]), float(arrays.top_p[row]), float(arrays.min_p[row])
        return processed, kept_threshold(processed, *filters)

    def _logprobs(
        self, logits: Float32s, raw: dict[int, Float32s], token_ids: Int32s, inputs: StepInputs
    ) -> dict[str, bytes]:
        arrays, rows = self._batch.sampling, inputs.sample_rows
        asking = np.flatnonzero(arrays.has_logprobs[rows])
        if not asking.size:
            return {}
        gathered = LogprobArrays(asking.size, int(arrays.num_logprobs[rows[asking]].max()), self._vocab_size)
        at_once = self._rows_at_once()
        for start in range(0, asking.size, at_once):
            indexes = asking[start : start + at_once]
            wanted = np.stack([self._wanted(logits, raw, int(index), int(rows[index])) for index in indexes])
            _fill(gathered, start, wanted, token_ids[indexes])
        return gathered.fields(asking)

    def _wanted(self, logits: Float32s, raw: dict[int, Float32s], index: int, row: int) -> Float32s:
        """float32 [vocab]: what a row wants the log-probabilities of."""
        if not self._batch.sampling.has_processed_logprobs[row]:
            own: Float32s = raw.get(index, logits[index])
            return own
        processed, threshold = self._processed(logits[index], row)
        processed[processed < threshold] = -np.inf
        return processed

    def _rows_at_once(self) -> int:
        return max(1, PIECE_LOGITS // self._vocab_size)


def _fill(
    arrays: LogprobArrays, start: int, logits: Float32s, token_ids: NDArray[np.int32] | NDArray[np.int64]
) -> None:
    """Tokens start .. start + n - 1. logits: [n, vocab]; token_ids: [n]."""
    logprobs = logprobs_of(logits)
    arrays.put(start, logprobs[np.arange(len(logprobs)), token_ids], *most_likely(logprobs, arrays.num_top))
