"""Steps in which every row samples and some verify drafts: 1 + K tokens a row, in a graph as single tokens are.

Rows differ in their number of drafts, and a graph does not: each row has as many places as the longest, its own tokens
in the last of them. Places before them are padding, which writes to no slot and which nobody reads; so the last key
that a row sees is its last token's, as attention counts them. What is sampled is gathered, row after row without gaps.

The host says all of it: it knows every token of a row before there can be drafts.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from ...kernels.device_operations import PagedCache, RowTables
from ...models.device_decoder import DecoderBuffers, DeviceDecoder, StepTensors
from ..input_batch import Int32s, Int64s
from ..prepare_inputs import StepInputs
from .graphs import GraphCache
from .staging import StagingRing
from .state import DeviceState
from .step_sampler import StepSampler


class DraftSteps:
    """Of up to `max_places` places, padding included; hidden states of the last step are in `buffers`."""

    def __init__(
        self,
        decoder: DeviceDecoder,
        caches: tuple[PagedCache, ...],
        buffers: DecoderBuffers,
        state: DeviceState,
        graphs: GraphCache,
        logits: Tensor,
    ) -> None:
        """logits: [max_places, vocab_size] of the decoder's dtype, written by `sample`."""
        self._decoder, self._caches, self._buffers = decoder, caches, buffers
        self._state, self._graphs, self._logits = state, graphs, logits
        self.max_places, device = len(logits), decoder.device
        self._wide = torch.zeros(5 * self.max_places, dtype=torch.int64, device=device)
        """Of each place: token, position, slot; of each one that samples: its place, position."""
        self._narrow = torch.zeros(2 * self.max_places, dtype=torch.int32, device=device)
        """Of each row: tokens that it sees; of each place that samples: its row."""

    @property
    def num_bytes(self) -> int:
        """Of the device's memory, beside the logits."""
        return self._wide.nbytes + self._narrow.nbytes

    def takes(self, inputs: StepInputs, bucket: int | None) -> bool:
        """Whether every row samples behind each of its tokens, and there is room for them, padded to `bucket` rows."""
        counts = inputs.sample_counts
        if bucket is None or counts is None or counts.size != inputs.rows.size:
            return False
        return bool((counts == inputs.num_tokens).all()) and bucket * int(counts.max()) <= self.max_places

    def stage(self, inputs: StepInputs, bucket: int, ring: StagingRing) -> tuple[Tensor, Tensor]:
        """What `bring` copies to where the graphs find it."""
        assert inputs.sample_counts is not None
        counts, length = inputs.sample_counts, int(inputs.num_tokens.max())
        num_places, num_tokens = bucket * length, inputs.token_ids.size
        first_places = np.arange(counts.size) * length + length - counts
        places = np.arange(num_tokens) + np.repeat(first_places - (np.cumsum(counts) - counts), counts)
        wide: Int64s = np.zeros((5, num_places), np.int64)
        wide[0, places], wide[1, places] = inputs.token_ids, inputs.positions
        wide[2] = -1
        wide[2, places] = inputs.slot_mapping
        wide[3, :num_tokens], wide[4, :num_tokens] = places, inputs.sample_positions - 1
        narrow: Int32s = np.zeros(bucket + num_places, np.int32)
        narrow[: counts.size] = inputs.kv_lens
        narrow[bucket:] = self._state.padding_row
        narrow[bucket : bucket + num_tokens] = inputs.sample_rows
        return ring.put(wide.reshape(-1)), ring.put(narrow)

    def bring(self, staged: tuple[Tensor, Tensor]) -> None:
        """On the device: what was staged, behind the steps that were launched."""
        wide, narrow = staged
        self._wide[: len(wide)].copy_(wide)
        self._narrow[: len(narrow)].copy_(narrow)

    def bring_padding(self, bucket: int, length: int) -> None:
        """On the device: a step of nothing but padding."""
        self._wide[: 5 * bucket * length].zero_()
        self._of_places(bucket * length)[2].fill_(-1)
        self._narrow[:bucket].zero_()
        self._narrow[bucket : bucket * (1 + length)].fill_(self._state.padding_row)

    def forward(self, bucket: int, length: int) -> None:
        """Compute the step that was brought: `length` places of each of `bucket` rows."""
        self._graphs.run(("forward", bucket, length), lambda: self._forward(bucket, length))

    def sample(self, bucket: int, length: int, sampler: StepSampler, kind: Hashable) -> None:
        """From the hidden states of `forward`, into the sampler's outputs."""
        body = lambda: self._sample(bucket, length, sampler, kind)  # noqa: E731
        self._graphs.run(("sample", bucket, length, kind), body, has_few_launches=True)

    def hidden(self, bucket: int, length: int) -> Tensor:
        """[k + padding, hidden_size]: of the places that sample, in their order."""
        sample_places = self._of_places(bucket * length)[3]
        return self._buffers.keep(bucket * length).hidden.index_select(0, sample_places)

    def _of_places(self, num_places: int) -> tuple[Tensor, ...]:
        return self._wide[: 5 * num_places].view(5, num_places).unbind(0)

    def _forward(self, bucket: int, length: int) -> None:
        token_ids, positions, slots, _, _ = self._of_places(bucket * length)
        rows = RowTables(self._state.step_tables[:bucket], self._narrow[:bucket], None, length)
        step = StepTensors(token_ids, positions, slots, rows)
        self._decoder.forward(step, self._caches, self._buffers.keep(bucket * length))

    def _sample(self, bucket: int, length: int, sampler: StepSampler, kind: Hashable) -> None:
        num_places = bucket * length
        logits, rows = self._logits[:num_places], self._narrow[bucket : bucket + num_places]
        self._decoder.logits(self.hidden(bucket, length), logits)
        sampler.launch(logits, rows, self._of_places(num_places)[4], kind)
