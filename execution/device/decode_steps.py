"""Steps in which every row has one token and samples: all that they read is on the device already."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from ...kernels.decode_state import DecodeInputs, RowState
from ...kernels.device_operations import PagedCache, RowTables
from ...models.device_decoder import DecoderBuffers, DeviceDecoder, StepTensors
from .graphs import GraphCache
from .state import DeviceState
from .step_sampler import StepSampler


class DecodeSteps:
    """Of up to `max_rows` places, padding included; hidden states of the last step are in `buffers`."""

    def __init__(
        self,
        decoder: DeviceDecoder,
        caches: tuple[PagedCache, ...],
        buffers: DecoderBuffers,
        state: DeviceState,
        graphs: GraphCache,
        logits: Tensor,
        max_rows: int,
    ) -> None:
        """logits: [max_rows or more, vocab_size] of the decoder's dtype, written by `sample`."""
        self._decoder, self._caches, self._buffers = decoder, caches, buffers
        self._state, self._graphs = state, graphs
        self._rows = RowState(state.tokens, state.positions)
        device = decoder.device
        self._inputs = DecodeInputs(
            token_ids=torch.zeros(max_rows, dtype=torch.int64, device=device),
            positions=torch.zeros(max_rows, dtype=torch.int64, device=device),
            slot_mapping=torch.zeros(max_rows, dtype=torch.int64, device=device),
            kv_lens=torch.zeros(max_rows, dtype=torch.int32, device=device),
        )
        self._logits = logits

    @property
    def num_bytes(self) -> int:
        """Of what a step writes beside the decoder's buffers and the logits."""
        return sum(tensor.nbytes for tensor in self._inputs)

    def forward(self, bucket: int) -> Tensor:
        """Compute the step that the state's order describes; returns hidden states [bucket, hidden_size]."""
        self._graphs.run(("forward", bucket), lambda: self._forward(bucket))
        return self._buffers.keep(bucket).hidden

    def sample(self, bucket: int, sampler: StepSampler, kind: Hashable) -> None:
        """From the hidden states of `forward`, into the sampler's outputs and into the state."""
        body = lambda: self._sample(bucket, sampler, kind)  # noqa: E731
        self._graphs.run(("sample", bucket, kind), body, has_few_launches=True)

    def _forward(self, bucket: int) -> None:
        state = self._state
        inputs = DecodeInputs(*(tensor[:bucket] for tensor in self._inputs))
        tables = state.step_tables[:bucket]
        operations, block_size = self._decoder.operations, self._caches[0].block_size
        operations.begin_decode(self._rows, state.order[:bucket], tables, block_size, inputs)
        step = StepTensors(
            inputs.token_ids, inputs.positions, inputs.slot_mapping, RowTables(tables, inputs.kv_lens, None, 1)
        )
        self._decoder.forward(step, self._caches, self._buffers.keep(bucket))

    def _sample(self, bucket: int, sampler: StepSampler, kind: Hashable) -> None:
        logits, order = self._logits[:bucket], self._state.order[:bucket]
        self._decoder.logits(self._buffers.keep(bucket).hidden, logits)
        sampler.launch(logits, order, self._inputs.positions[:bucket], kind)
        self._decoder.operations.finish_decode(self._rows, order, sampler.outputs[:bucket])
