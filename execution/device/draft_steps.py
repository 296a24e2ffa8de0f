"""Steps in which every row samples behind each of its tokens, for some are drafts: 1 + K tokens a row, in graphs.

Rows differ in their number of drafts, so tokens lie row after row without gaps, and a graph is made for a number of
tokens, padding behind them, whatever the rows are: what a step takes follows from its tokens alone.

The host says all of it: it knows every token of a row before there can be drafts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...kernels.device_operations import PagedCache, RowTables
from ...models.device_decoder import DecoderBuffers, DeviceDecoder, StepTensors
from ..graph_buckets import graph_bucket
from ..input_batch import Int32s, Int64s
from ..prepare_inputs import StepInputs
from .graphs import GraphCache
from .limits import DRAFT_LENGTHS
from .staging import StagingRing
from .state import DeviceState
from .step_sampler import StepSampler


class DraftSteps:
    """Of up to `buckets[-1]` tokens, padding included, of up to `max_rows` rows; hidden states of the last step are in
    `buffers`."""

    def __init__(
        self,
        decoder: DeviceDecoder,
        caches: tuple[PagedCache, ...],
        buffers: DecoderBuffers,
        state: DeviceState,
        graphs: GraphCache,
        logits: Tensor,
        max_rows: int,
        buckets: Sequence[int],
    ) -> None:
        """logits: [buckets[-1], vocab_size] of the decoder's dtype, written by `sample`; buckets: numbers of tokens,
        ascending."""
        self._decoder, self._caches, self._buffers = decoder, caches, buffers
        self._state, self._graphs, self._logits = state, graphs, logits
        self._max_rows, self._buckets, device = max_rows, buckets, decoder.device
        self._wide = torch.zeros(4 * buckets[-1], dtype=torch.int64, device=device)
        """Of each token: itself, its position, its slot, the position before the one that is sampled."""
        self._narrow = torch.zeros(buckets[-1] + 2 * max_rows + 1, dtype=torch.int32, device=device)
        """Of each token its row; of each row its first token, and tokens that it sees."""

    @property
    def num_bytes(self) -> int:
        """Of the device's memory, beside the logits."""
        return self._wide.nbytes + self._narrow.nbytes

    def size_of(self, inputs: StepInputs) -> tuple[int, int] | None:
        """(tokens with padding, longest row) of the graphs for a step; None: it is not of this kind, or too large."""
        counts = inputs.sample_counts
        if counts is None or counts.size != inputs.rows.size or not (counts == inputs.num_tokens).all():
            return None
        bucket, longest = graph_bucket(inputs.token_ids.size, self._buckets), int(counts.max())
        length = next((length for length in DRAFT_LENGTHS if length >= longest), None)
        return None if bucket is None or length is None else (bucket, length)

    def stage(self, inputs: StepInputs, bucket: int, ring: StagingRing) -> tuple[Tensor, Tensor]:
        """What `bring` copies to where the graphs find it."""
        num_tokens, num_rows, places = inputs.token_ids.size, inputs.rows.size, self._num_rows(bucket)
        wide: Int64s = np.zeros((4, bucket), np.int64)
        wide[0, :num_tokens], wide[1, :num_tokens] = inputs.token_ids, inputs.positions
        wide[2] = -1
        wide[2, :num_tokens] = inputs.slot_mapping
        wide[3, :num_tokens] = inputs.sample_positions - 1
        narrow: Int32s = np.zeros(bucket + 2 * places + 1, np.int32)
        narrow[:bucket] = self._state.padding_row
        narrow[:num_tokens] = inputs.sample_rows
        narrow[bucket : bucket + places + 1] = num_tokens
        narrow[bucket : bucket + num_rows] = inputs.query_starts[:-1]
        narrow[bucket + places + 1 :][:num_rows] = inputs.kv_lens
        return ring.put(wide.reshape(-1)), ring.put(narrow)

    def bring(self, staged: tuple[Tensor, Tensor]) -> None:
        """On the device: what was staged, behind the steps that were launched."""
        wide, narrow = staged
        self._wide[: len(wide)].copy_(wide)
        self._narrow[: len(narrow)].copy_(narrow)

    def bring_padding(self, bucket: int) -> None:
        """On the device: a step of nothing but padding."""
        self._wide[: 4 * bucket].zero_()
        self._wide[2 * bucket : 3 * bucket].fill_(-1)
        self._narrow[:bucket].fill_(self._state.padding_row)
        self._narrow[bucket : bucket + 2 * self._num_rows(bucket) + 1].zero_()

    def forward(self, bucket: int, length: int) -> None:
        """Compute the step that was brought."""
        self._graphs.run(("forward", bucket, length), lambda: self._forward(bucket, length))

    def sample(self, bucket: int, sampler: StepSampler, kind: Hashable) -> None:
        """From the hidden states of `forward`, into the sampler's outputs."""
        body = lambda: self._sample(bucket, sampler, kind)  # noqa: E731
        self._graphs.run(("sample", bucket, "drafts", kind), body, has_few_launches=True)

    def _num_rows(self, bucket: int) -> int:
        return min(bucket, self._max_rows)

    def _of_tokens(self, bucket: int) -> tuple[Tensor, ...]:
        return self._wide[: 4 * bucket].view(4, bucket).unbind(0)

    def _forward(self, bucket: int, length: int) -> None:
        token_ids, positions, slots, _ = self._of_tokens(bucket)
        places = self._num_rows(bucket)
        of_rows = self._narrow[bucket : bucket + 2 * places + 1]
        starts, kv_lens = of_rows[: places + 1], of_rows[places + 1 :]
        rows = RowTables(self._state.step_tables[:places], kv_lens, starts, length)
        step = StepTensors(token_ids, positions, slots, rows)
        self._decoder.forward(step, self._caches, self._buffers.keep(bucket))

    def _sample(self, bucket: int, sampler: StepSampler, kind: Hashable) -> None:
        logits = self._logits[:bucket]
        self._decoder.logits(self._buffers.keep(bucket).hidden, logits)
        sampler.launch(logits, self._narrow[:bucket], self._of_tokens(bucket)[3], kind)
