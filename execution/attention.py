"""Attention of one step over the paged cache, as a model calls it layer by layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from ..kernels.kv_write import write_kv
from .attention_groups import AttentionGroup, RowLengths, make_group
from .input_batch import InputBatch, Int64s
from .kv_tensors import KVTensors
from .prepare_inputs import StepInputs

_MAX_GROUP_ELEMENTS = 1 << 25
"""Gathered keys and values, or mask, of one group; a group above it is cut by rows, down to single ones."""
_SHORT_KV_LEN = 512
"""Rows up to this KV length share a group; above it each power of two has its own."""


class PagedAttention:
    """The attention call of one prepared step: writes keys and values into the cache, then attends group by group."""

    def __init__(
        self, kv: KVTensors, inputs: StepInputs, batch: InputBatch, shape: ModelShape, dtype: torch.dtype
    ) -> None:
        """dtype: of the queries."""
        self.kv = kv
        self.slot_mapping = torch.from_numpy(inputs.slot_mapping).to(kv.device)
        rows = RowLengths(
            query_starts=inputs.query_starts[:-1],
            starts=inputs.starts.astype(np.int64),
            num_tokens=inputs.num_tokens.astype(np.int64),
            kv_lens=inputs.kv_lens.astype(np.int64),
            block_tables=batch.block_table[inputs.rows].astype(np.int64),
        )
        longest = int(rows.kv_lens.max())

        def make_groups(window: int | None) -> list[AttentionGroup]:
            seen = rows if window is None else replace(rows, window=window)
            return [make_group(seen.take(index), kv, shape.num_heads, dtype) for index in _partition(seen, kv)]

        # A window that no row has outgrown hides nothing: its layers attend as those without one.
        windows = [None if window is None or window >= longest else window for window in shape.windows or (None,)]
        groups = {window: make_groups(window) for window in dict.fromkeys(windows)}
        self.groups: list[AttentionGroup] = groups[windows[0]]
        """Of every layer, or of the first one."""
        self._layer_groups = [groups[window] for window in windows] if len(groups) > 1 else None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [t, num_heads, head_dim]; k, v: [t, kv_heads, head_dim]; t tokens of the step, in its order.
        Returns [t, num_heads * head_dim]."""
        key_cache, value_cache = self.kv.keys[layer], self.kv.values[layer]
        write_kv(key_cache, value_cache, k, v, self.slot_mapping)
        groups = self.groups if self._layer_groups is None else self._layer_groups[layer]
        if len(groups) == 1:
            return groups[0].attend(q, k, v, key_cache, value_cache)
        out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
        for group in groups:
            out[group.tokens] = group.attend(q, k, v, key_cache, value_cache)
        return out


def _partition(rows: RowLengths, kv: KVTensors) -> list[Int64s]:
    """Which rows go together, as index arrays in plan order; their number does not depend on the number of rows, but
    for what memory asks."""
    query_class = _ceil_log2(rows.num_tokens)
    kv_class = np.maximum(_ceil_log2(rows.seen_lens) - _ceil_log2(np.array([_SHORT_KV_LEN])), 0)
    is_fresh = rows.are_fresh & (rows.num_tokens > 1)
    keys = (query_class * 64 + np.where(is_fresh, 63, kv_class)).astype(np.int64)
    if (keys == keys[0]).all():
        return _cut(np.arange(keys.size), rows, kv)
    return [part for key in np.unique(keys) for part in _cut(np.flatnonzero(keys == key), rows, kv)]


def _cut(index: Int64s, rows: RowLengths, kv: KVTensors) -> list[Int64s]:
    """`index` in pieces of bounded memory."""
    kv_len, query_len = int(rows.seen_lens[index].max()), int(rows.num_tokens[index].max())
    elements = kv_len * max(2 * kv.keys[0][0].numel(), query_len)
    at_once = max(1, _MAX_GROUP_ELEMENTS // elements)
    return [index[i : i + at_once] for i in range(0, index.size, at_once)]


def _ceil_log2(lengths: Int64s) -> Int64s:
    """Of integers >= 1, exact below 2^52."""
    mantissa, exponent = np.frexp(lengths)
    rounded: Int64s = (exponent - (mantissa == 0.5)).astype(np.int64)
    return rounded
