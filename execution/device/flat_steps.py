"""Steps of any shape: whole prompts, chunks and single tokens side by side, as the host's flat arrays describe them.

A token that an earlier step sampled is on the device, and perhaps not on the host yet: it is put in its place there.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from torch import Tensor

from ...kernels.device_operations import PagedCache, RowTables
from ...models.device_decoder import DecoderBuffers, DeviceDecoder, StepTensors
from ..input_batch import Int64s
from ..prepare_inputs import StepInputs
from .staging import StagingRing
from .state import DeviceState
from .step_sampler import StepSampler


class FlatStep:
    """One step: made while the host fills the staging buffer, run when the device has it."""

    def __init__(self, inputs: StepInputs, state: DeviceState, ring: StagingRing) -> None:
        self._state, self._num_rows = state, inputs.rows.size
        self._num_tokens, self._max_query_len = inputs.positions.size, int(inputs.num_tokens.max())
        self._token_ids, self._positions, self._slots, self._last_tokens, self._sample_rows = (
            ring.put(array)
            for array in (
                inputs.token_ids,
                inputs.positions,
                inputs.slot_mapping,
                inputs.last_tokens,
                inputs.sample_rows.astype(np.int64),
            )
        )
        self._sample_places = ring.put(inputs.sample_rows)
        self._sample_positions = ring.put((inputs.sample_positions - 1).astype(np.int64))
        self._query_starts = ring.put(inputs.query_starts.astype(np.int32))
        self._kv_lens = ring.put(inputs.kv_lens)
        rows, places = _tokens_on_device(inputs, state)
        self._known_rows, self._known_places = ring.put(rows), ring.put(places)

    def forward(self, decoder: DeviceDecoder, caches: tuple[PagedCache, ...], buffers: DecoderBuffers) -> Tensor:
        """Hidden states [t, hidden_size], a view of the buffers."""
        if self._known_rows.numel():
            known = self._state.tokens.index_select(0, self._known_rows)
            self._token_ids.index_copy_(0, self._known_places, known.long())
        tables = self._state.step_tables[: self._num_rows]
        rows = RowTables(tables, self._kv_lens, self._query_starts, self._max_query_len)
        step = StepTensors(self._token_ids, self._positions, self._slots, rows)
        return decoder.forward(step, caches, buffers.take(self._num_tokens))

    def sample(
        self, decoder: DeviceDecoder, hidden: Tensor, logits: Tensor, sampler: StepSampler, kind: Hashable
    ) -> None:
        """Of the k rows that sample, into the sampler's outputs and the state; logits: [k, vocab_size], written."""
        decoder.logits(hidden.index_select(0, self._last_tokens), logits)
        sampler.launch(logits, self._sample_places, self._sample_positions, kind)
        self._state.tokens.index_copy_(0, self._sample_rows, sampler.outputs[: len(logits)])


def _tokens_on_device(inputs: StepInputs, state: DeviceState) -> tuple[Int64s, Int64s]:
    """(rows, places in the flat list) of the tokens of this step that the device has."""
    positions = state.token_positions[inputs.rows]
    is_in = (positions >= inputs.starts) & (positions < inputs.kv_lens)
    places = inputs.query_starts[:-1] + positions - inputs.starts
    return inputs.rows[is_in].astype(np.int64), places[is_in].astype(np.int64)
