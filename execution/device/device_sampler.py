"""Sampling on a GPU that the host waits for only where it wants to: parameters, counts and outputs stay there.

A step launches its sampling with `launch`, whose work is fixed by (kind, number of places), so that a graph of its own
can hold it; or with `launch_beside_host`, where some row needs torch beside the kernels. Outputs stay on the device
until whoever launched the step copies them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels.gpu.logit_changes import IN_PROMPT
from ...kernels.gpu.sampling import (
    MaskTensors,
    SamplingKind,
    SamplingOutputs,
    SamplingTensors,
    change_rows,
    mask_rows,
    sample_rows,
)
from ...kernels.gpu.sampling_rows import MAX_TOP, SamplingWorkspace
from ...kernels.gpu.token_bitmask import apply_token_bitmask
from ...mailbox.messages.steps import NewRow, PromptLogprobs, StepPlan
from ..input_batch import InputBatch, Int32s, Int64s
from ..logit_changes import LogitChanges
from ..logprob_arrays import LogprobArrays
from ..prepare_inputs import StepInputs
from ..prompt_logprobs import prompt_logprobs
from ..prompt_pieces import PromptPieces
from ..sampled_logprobs import StepLogits, sampled_logprobs
from ..sampler import Sampled
from ..sampling_batch import sampling_batch
from ..token_masks import TokenMasks
from .row_demands import MAX_BIAS, RowDemands
from .staging import StagingRing


class DeviceSampler:
    """Of steps of up to `max_places` places, padding included.

    compute_logits: [k, hidden_size] -> [k, vocab_size], float32 or bfloat16, valid until the next call.
    """

    def __init__(
        self,
        compute_logits: Callable[[Tensor], Tensor],
        batch: InputBatch,
        vocab_size: int,
        max_places: int,
        device: torch.device,
    ) -> None:
        self._compute_logits, self._batch, self._device = compute_logits, batch, device
        self._vocab_size = vocab_size
        self.demands = RowDemands(batch, vocab_size)
        self.outputs = SamplingOutputs(max_places, device)
        self._tensors = SamplingTensors.make(batch.max_num_seqs, max_places, vocab_size, MAX_BIAS, device)
        self._workspace = SamplingWorkspace(max_places, vocab_size, device)
        self._mask_tensors = MaskTensors(max_places, vocab_size, device)
        self._counted_to: Int32s = np.zeros(batch.max_num_seqs, np.int32)
        """Of a row with penalties: the tokens before this position are counted."""
        self._masks = LogitChanges(batch, vocab_size, self._to_device, self._apply_masks)

    @property
    def num_bytes(self) -> int:
        """Of the device's memory."""
        parts = (self._tensors, self._mask_tensors, self._workspace)
        return sum(part.num_bytes for part in parts) + self.outputs.everything.nbytes

    @torch.inference_mode()
    def apply(self, plan: StepPlan) -> None:
        """Queue the copies of what a plan changes, behind the steps that were launched; nothing is waited for."""
        self._masks.apply(self.demands.place(plan))
        if not plan.new_rows:
            return
        rows = np.array([new.row for new in plan.new_rows], np.int32)
        there = self._to_device(rows.astype(np.int64))
        self._tensors.table.index_copy_(0, there, self._to_device(self.demands.parameters(rows)))
        for new in plan.new_rows:
            self._place_biases(new)
            if self.demands.has_penalties[new.row]:
                self._count_tokens(new.row, len(new.token_ids) // 4)

    def clear(self) -> None:
        self._masks.clear()

    def launch(self, logits: Tensor, rows: Tensor, positions: Tensor, kind: SamplingKind) -> None:
        """Fill `outputs`, for rows whose demands are recordable.

        logits: [n, vocab_size], float32 or bfloat16, rows dense; rows: int32 [n], of the batch, distinct;
        `max_num_seqs` and more is padding; positions: int64 or int32 [n], of the tokens whose logits these are; kind:
        `demands.kind` of the rows.
        """
        if kind.has_changes:
            change_rows(logits, rows, self._tensors)
        if kind.has_masks:
            mask_rows(len(logits), self._tensors, self._mask_tensors)
        sample_rows(logits, rows, positions, kind, self._tensors, self._workspace, self.outputs)

    @torch.inference_mode()
    def place_masks(self, masks: TokenMasks, rows: Int32s, positions: Int32s, ring: StagingRing) -> None:
        """Those of the next `launch`; what was launched may read the masks of its own step still.

        rows, positions: int32 [k], of the tokens that its first places sample; the batch has all tokens before."""
        self._masks.narrow(masks, rows, positions)
        self._count_anew(rows, positions)
        there, num_masks = self._mask_tensors, masks.indexes.size
        places = np.full(there.rows.shape[0], -1, np.int32)
        places[:num_masks] = masks.indexes
        ring.open()
        staged_places, staged_words = ring.put(places), ring.put(masks.words.reshape(-1))
        ring.send()
        there.rows.copy_(staged_places)
        there.words[:num_masks].view(-1).copy_(staged_words)
        ring.close()

    def launch_beside_host(
        self,
        logits: Tensor,
        rows: Tensor,
        positions: Tensor,
        kind: SamplingKind,
        inputs: StepInputs,
        masks: TokenMasks | None = None,
    ) -> None:
        """As `launch`, for any rows: the k rows that sample in `inputs`, in their order, and padding behind them. The
        batch has all their tokens."""
        if masks is not None:
            self._count_anew(inputs.sample_rows, inputs.sample_positions)
        if kind.has_changes:
            change_rows(logits, rows, self._tensors)
            self._masks.change(self._tensors.changed[: inputs.sample_rows.size], inputs, masks, keeps_raw=False)
        sample_rows(logits, rows, positions, kind, self._tensors, self._workspace, self.outputs)

    def logprob_reader(self, rows: Int32s) -> Callable[[NDArray[np.int32]], dict[str, bytes]]:
        """From the host's copy of `outputs.everything` to the fields of a `StepResult` about log-probabilities, empty
        if no row asks. rows: int32 [k], of the batch, none of which asks for more than MAX_TOP. Made when the step is
        launched: other requests may stand in the rows when it has ended."""
        arrays = self._batch.sampling
        asking = np.flatnonzero(arrays.has_logprobs[rows])
        num_top = int(arrays.num_logprobs[rows[asking]].max(initial=0))
        return lambda everything: self._logprob_fields(everything, asking, num_top)

    def logprob_fields(self, everything: NDArray[np.int32], rows: Int32s) -> dict[str, bytes]:
        """As the reader has them, for rows whose requests are still there."""
        return self.logprob_reader(rows)(everything)

    def _logprob_fields(
        self, everything: NDArray[np.int32], asking: NDArray[np.int64], num_top: int
    ) -> dict[str, bytes]:
        if not asking.size:
            return {}
        gathered = LogprobArrays(asking.size, num_top, self._vocab_size)
        places = self.outputs.tokens.numel()
        logprobs, rest = everything[places:].view(np.float32)[:places], everything[2 * places :]
        top_ids = rest[: places * MAX_TOP].reshape(places, MAX_TOP)
        top_logprobs = rest[places * MAX_TOP :].view(np.float32).reshape(places, MAX_TOP)
        num_top = gathered.num_top
        gathered.put(0, logprobs[asking], top_ids[asking, :num_top], top_logprobs[asking, :num_top])
        return gathered.fields(asking)

    @torch.inference_mode()
    def warm_up(self, logits: Tensor) -> None:
        """Compile every kernel for logits such as these, [max_places, vocab_size], by launches over padding."""
        rows = torch.full((len(logits),), self._batch.max_num_seqs, dtype=torch.int32, device=self._device)
        positions = torch.zeros(len(logits), dtype=torch.int64, device=self._device)
        for kind in itertools.product((False, True), (False, True), (False, True), (True,), (True,), (True,)):
            for num_places in (1, len(logits)):
                part = slice(num_places)
                self.launch(logits[part], rows[part], positions[part], SamplingKind(*kind))

    @torch.inference_mode()
    def sample(self, hidden: Tensor, inputs: StepInputs, masks: TokenMasks | None = None) -> Sampled:
        """A step's sampling, and its outputs on the host, waited for."""
        rows = inputs.sample_rows
        logits = self._compute_logits(hidden[self._to_device(inputs.last_tokens)])
        kind = self.demands.kind(rows)
        positions = (inputs.sample_positions - 1).astype(np.int64)
        self.launch_beside_host(logits, self._to_device(rows), self._to_device(positions), kind, inputs, masks)
        everything = self.outputs.everything.cpu().numpy()
        token_ids = everything[: rows.size].copy()
        if (self._batch.sampling.num_logprobs[rows] > MAX_TOP).any():
            return Sampled(token_ids, self._long_logprobs(logits, token_ids, inputs))
        return Sampled(token_ids, self.logprob_fields(everything, rows))

    @torch.inference_mode()
    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        return prompt_logprobs(pieces, hidden, self._compute_float_logits, self._vocab_size)

    def _apply_masks(self, logits: Tensor, rows: Int64s, words: Int32s) -> None:
        apply_token_bitmask(logits, self._to_device(rows.astype(np.int32)), self._to_device(words))

    def _compute_float_logits(self, hidden: Tensor) -> Tensor:
        return self._compute_logits(hidden).float()

    def _long_logprobs(self, logits: Tensor, token_ids: Int32s, inputs: StepInputs) -> dict[str, bytes]:
        """As `logprob_fields`, in torch, for any number of most likely tokens."""
        rows = inputs.sample_rows
        raw, own = {}, logits.float()
        is_changed = self.demands.has_changes[rows]
        changed = self._to_device(np.flatnonzero(is_changed))
        for index in np.flatnonzero(is_changed & ~self._batch.sampling.has_processed_logprobs[rows]).tolist():
            raw[index] = logits[index].float()
        own = own.index_copy(0, changed, self._tensors.changed.index_select(0, changed))
        step = StepLogits(own, sampling_batch(self._batch, inputs, self._to_device), raw)
        return sampled_logprobs(step, self._to_device(token_ids.astype(np.int64)), rows, self._batch.sampling)

    def _place_biases(self, new: NewRow) -> None:
        biases = self.demands.biases(new.sampling)
        if 0 < len(biases) <= MAX_BIAS:
            token_ids, values = zip(*biases, strict=True)
            self._tensors.bias_ids[new.row, : len(biases)] = self._to_device(np.array(token_ids, np.int32))
            self._tensors.bias[new.row, : len(biases)] = self._to_device(np.array(values, np.float32))

    def _count_anew(self, rows: Int32s, positions: Int32s) -> None:
        """A step that samples under masks counts the tokens of late rows, too, which are then sampled once more. rows,
        positions: int32 [k], of the tokens to be sampled; the batch has all tokens before."""
        constrained = self.demands.has_penalties[rows] & self._batch.is_constrained[rows]
        for index in np.flatnonzero(constrained & (self._counted_to[rows] != positions)).tolist():
            self._count_tokens(int(rows[index]), int(positions[index]))
        self._counted_to[rows[constrained]] = positions[constrained] + 1

    def _count_tokens(self, row: int, num_tokens: int) -> None:
        """Those that the batch has, so many."""
        self._counted_to[row] = num_tokens
        counts, num_prompt_tokens = self._tensors.counts[row], self._batch.num_prompt_tokens[row]
        tokens = self._batch.token_ids[row, :num_tokens].astype(np.int64)
        prompt, output = tokens[:num_prompt_tokens], tokens[num_prompt_tokens:]
        counts.zero_()
        if self.demands.has_repetition(row):
            counts.index_fill_(0, self._to_device(prompt), IN_PROMPT)
        if output.size:
            distinct, times = np.unique(output, return_counts=True)
            counts.index_add_(0, self._to_device(distinct), self._to_device(times.astype(np.int32)))

    def _to_device(self, array: NDArray[np.generic]) -> Tensor:
        """Through pinned memory, which torch keeps until the copy is made, so that nobody waits."""
        tensor = torch.from_numpy(array)
        if self._device.type != "cuda":
            return tensor.clone()
        return tensor.pin_memory().to(self._device, non_blocking=True)
