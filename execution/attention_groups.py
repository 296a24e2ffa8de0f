"""Rows of a step that attend in one call, and what that call needs, made once a step and shared by all layers.

A step mixes rows of one token with chunks of thousands. Rows are grouped by the power of two of their query length and
of their KV length, padded inside the group, and a group that would need too much memory is cut: a loop over groups, not
over rows. Most steps have one group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.paged_attention import SlotIndex, attend_causal, attend_dense, attend_gathered, attend_indexed
from .input_batch import Int64s
from .kv_tensors import KVTensors

Tokens = Tensor | slice
"""Which tokens of the flat list: int64 indexes or a range."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """One query token a row, gathered keys and values. `slots` [b, t]; `mask` [b, 1, 1, t] or None."""

    tokens: Tokens
    slots: Tensor
    mask: Tensor | None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        out = attend_gathered(q[self.tokens][:, None], key_cache, value_cache, self.slots, self.mask)
        return out.reshape(out.shape[0], -1)


@dataclass(frozen=True, slots=True)
class IndexedGroup:
    """One query token a row, the cache read in place (float32 on a CPU)."""

    tokens: Tokens
    index: SlotIndex

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        out = attend_indexed(q[self.tokens], key_cache, value_cache, self.index)
        return out.view(out.shape[0], -1)


@dataclass(frozen=True, slots=True)
class ContiguousGroup:
    """One row of one query token whose slots `first .. end - 1` lie side by side: a view, nothing is copied."""

    tokens: Tokens
    slots: slice

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        keys, values = key_cache[None, self.slots], value_cache[None, self.slots]
        return attend_dense(q[self.tokens][:, None], keys, values, None).reshape(1, -1)


@dataclass(frozen=True, slots=True)
class FreshGroup:
    """Rows that begin at position 0: all keys are in the step itself. `padded`: int64 [b, l], flat tokens, the last
    one repeated, None for a single row; `valid`: int64 [m], which of the b * l outputs count."""

    tokens: Tokens
    padded: Tensor | None
    valid: Tensor | None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        # The cache may be of another type than k and v: what a later chunk will read is what is used here.
        k, v = k.to(key_cache.dtype).to(q.dtype), v.to(key_cache.dtype).to(q.dtype)
        if self.padded is None or self.valid is None:
            out = attend_causal(q[None, self.tokens], k[None, self.tokens], v[None, self.tokens])
            return out.reshape(out.shape[1], -1)
        out = attend_causal(q[self.padded], k[self.padded], v[self.padded])
        return out.reshape(self.padded.numel(), -1)[self.valid]


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """Rows with tokens before this step and more than one query token. `padded` [b, l], `valid` [m] as in
    `FreshGroup`; `slots` [b, t]; `mask` [b, 1, l, t]."""

    tokens: Tokens
    padded: Tensor
    valid: Tensor
    slots: Tensor
    mask: Tensor

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        out = attend_gathered(q[self.padded], key_cache, value_cache, self.slots, self.mask)
        return out.reshape(self.padded.numel(), -1)[self.valid]


AttentionGroup = DecodeGroup | IndexedGroup | ContiguousGroup | FreshGroup | ChunkGroup


@dataclass(frozen=True, slots=True)
class RowLengths:
    """Some rows of a step: arrays [b], and their block tables [b, max_blocks]."""

    query_starts: Int64s
    starts: Int64s
    num_tokens: Int64s
    kv_lens: Int64s
    block_tables: Int64s
    window: int | None = None
    """How many tokens a token sees, itself included; None: all before it."""

    def take(self, index: Int64s) -> RowLengths:
        return RowLengths(
            self.query_starts[index],
            self.starts[index],
            self.num_tokens[index],
            self.kv_lens[index],
            self.block_tables[index],
            self.window,
        )

    @property
    def firsts(self) -> Int64s | None:
        """[b]: first position that a row's first token sees; None: position 0 in all of them."""
        if self.window is None or self.kv_lens.max() <= self.window:
            return None
        firsts: Int64s = np.maximum(self.starts + 1 - self.window, 0)
        return firsts

    @property
    def seen_lens(self) -> Int64s:
        """[b]: positions that any token of the row sees."""
        firsts = self.firsts
        return self.kv_lens if firsts is None else self.kv_lens - firsts

    @property
    def are_fresh(self) -> NDArray[np.bool_]:
        """[b]: whether all keys that the row sees are in the step itself, each token's up to its own."""
        are_fresh: NDArray[np.bool_] = self.starts == 0
        if self.window is not None:
            are_fresh &= self.num_tokens <= self.window
        return are_fresh


def make_group(rows: RowLengths, kv: KVTensors, num_heads: int, dtype: torch.dtype) -> AttentionGroup:
    """The group of these rows: all of one query token, or all fresh, or neither. dtype: of the queries."""
    if rows.num_tokens.max() == 1:
        return _decode_group(rows, kv, num_heads, dtype)
    length = int(rows.num_tokens.max())
    steps = np.arange(length)
    in_row = np.minimum(steps, rows.num_tokens[:, None] - 1)
    padded = rows.query_starts[:, None] + in_row
    is_valid = steps < rows.num_tokens[:, None]
    valid = torch.from_numpy(np.flatnonzero(is_valid)).to(kv.device)
    tokens = _tokens(padded[is_valid], kv)
    if rows.are_fresh.all():
        if rows.starts.size == 1:
            return FreshGroup(tokens, None, None)
        return FreshGroup(tokens, torch.from_numpy(padded).to(kv.device), valid)
    slots = _slots(rows, kv)
    is_seen = _is_seen(rows, in_row, slots.shape[1])
    mask = _additive(is_seen, dtype, kv.device)[:, None]
    return ChunkGroup(
        tokens, torch.from_numpy(padded).to(kv.device), valid, torch.from_numpy(slots).to(kv.device), mask
    )


def _decode_group(rows: RowLengths, kv: KVTensors, num_heads: int, dtype: torch.dtype) -> AttentionGroup:
    tokens = _tokens(rows.query_starts, kv)
    slots = _slots(rows, kv)
    is_indexed = dtype == kv.dtype == torch.float32 and kv.device.type == "cpu"
    if slots.shape[0] == 1 and slots[0, -1] - slots[0, 0] == slots.shape[1] - 1 and (np.diff(slots[0]) == 1).all():
        first = int(slots[0, 0])
        return ContiguousGroup(tokens, slice(first, first + slots.shape[1]))
    mask, seen_lens = None, rows.seen_lens
    if seen_lens.min() < slots.shape[1]:
        mask = _additive(np.arange(slots.shape[1]) < seen_lens[:, None], dtype, kv.device)
    if is_indexed:
        kv_heads = kv.keys[0].shape[1]
        in_rows = None if mask is None else mask[:, None]
        return IndexedGroup(tokens, SlotIndex(torch.from_numpy(slots), num_heads, kv_heads, kv.num_slots, in_rows))
    return DecodeGroup(tokens, torch.from_numpy(slots).to(kv.device), None if mask is None else mask[:, None, None])


def _tokens(flat: Int64s, kv: KVTensors) -> Tokens:
    """A range where the tokens are one: indexing by it is a view."""
    first, last = int(flat[0]), int(flat[-1])
    if last - first == flat.size - 1:  # increasing and distinct, so nothing is left out
        return slice(first, last + 1)
    return torch.from_numpy(flat).to(kv.device)


def _is_seen(rows: RowLengths, in_row: Int64s, num_keys: int) -> NDArray[np.bool_]:
    """[b, l, num_keys]: whether query token `in_row` [b, l] of a row sees the key in its i-th slot."""
    queries = (rows.starts[:, None] + in_row)[:, :, None]
    firsts = rows.firsts
    keys = np.arange(num_keys)
    if firsts is not None and rows.window is not None:
        queries = queries - firsts[:, None, None]
        in_window: NDArray[np.bool_] = (keys <= queries) & (keys > queries - rows.window)
        return in_window
    is_seen: NDArray[np.bool_] = keys <= queries
    return is_seen


def _slots(rows: RowLengths, kv: KVTensors) -> Int64s:
    """[b, longest seen_len]: slot of each position that the row sees, its last one repeated behind its end."""
    positions = np.arange(rows.seen_lens.max())
    if (firsts := rows.firsts) is not None:
        positions = positions + firsts[:, None]
    positions = np.minimum(positions, rows.kv_lens[:, None] - 1)
    blocks = np.take_along_axis(rows.block_tables, positions // kv.block_size, axis=1)
    slots: Int64s = blocks * kv.block_size + positions % kv.block_size
    return slots


def _additive(is_seen: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> Tensor:
    """0 where seen, -inf elsewhere, of `dtype`."""
    mask = torch.zeros(is_seen.shape, dtype=dtype, device=device)
    return mask.masked_fill_(torch.from_numpy(~is_seen).to(device), -torch.inf)
