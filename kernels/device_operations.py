"""The operations that a decoder layer is made of on a device, as one seam: fused kernels there, torch's here.

Each writes into outputs that exist, asks the host for nothing and has shapes that its arguments fix, so that a graph
can record it. `TorchOperations` are the plain twins: they run anywhere, and wherever a kernel does not take a shape.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .decode_state import DecodeInputs, RowState, begin_decode, finish_decode

Activation = Literal["silu", "gelu_tanh"]


class Matrix(NamedTuple):
    """y = x Wᵀ + b"""

    weight: Tensor
    """[out_features, in_features]"""
    bias: Tensor | None = None
    """[out_features]"""


class Norm(NamedTuple):
    """x / sqrt(mean(x²) + eps) * weight over the last axis."""

    weight: Tensor
    """float32 [size], or a row for each head: [heads, size]"""
    eps: float


class PagedCache(NamedTuple):
    """One layer's keys and values: [num_slots, kv_heads, head_dim] each; slot = block_id * block_size + offset. Their
    last slot belongs to no block: what padding writes, where an operation cannot leave it out, goes there."""

    keys: Tensor
    values: Tensor
    block_size: int


class RowTables(NamedTuple):
    """The n rows of a step."""

    block_tables: Tensor
    """int32 [n, max_blocks]; rows may lie further apart than max_blocks"""
    kv_lens: Tensor
    """int32 [n]: tokens that the row's last query token sees, itself included; 0: padding"""
    query_starts: Tensor | None
    """int32 [n + 1]: first token of each row in the flat list; None: every row has one token"""
    max_query_len: int


class Operations(Protocol):
    """x and outputs are of the model's dtype, [t, features], rows dense."""

    def rms_norm(self, x: Tensor, norm: Norm, out: Tensor) -> None: ...

    def linear(self, x: Tensor, matrix: Matrix, out: Tensor, *, norm: Norm | None = None) -> None:
        """out = norm(x) Wᵀ + b"""
        ...

    def add_linear(self, x: Tensor, matrix: Matrix, residual: Tensor) -> None:
        """residual += x Wᵀ + b"""
        ...

    def gated_linear(self, x: Tensor, matrix: Matrix, out: Tensor, activation: Activation, norm: Norm) -> None:
        """out = activation(gate) * up, where [gate, up] = norm(x) Wᵀ + b; out: half as wide as the matrix is tall"""
        ...

    def add_norm(self, x: Tensor, norm: Norm, residual: Tensor) -> None:
        """residual += norm(x)"""
        ...

    def rotary_kv_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        table: Tensor,
        slot_mapping: Tensor,
        cache: PagedCache,
        q_out: Tensor,
        head_norm: Norm | None,
    ) -> None:
        """Queries and keys, normed head by head if there is a norm, turned by their position; keys and values into the
        cache.

        qkv: [t, (num_heads + 2 kv_heads) * head_dim]; positions, slot_mapping: int64 [t], slot -1 for padding;
        table: [max_len, 2, 1, head_dim]; q_out: [t, num_heads, head_dim]; head_norm: [num_heads + kv_heads, head_dim]
        """
        ...

    def attend(
        self, q: Tensor, cache: PagedCache, rows: RowTables, out: Tensor, *, scale: float, window: int | None
    ) -> None:
        """Causal attention over the cache, which has the keys and values of this step; q, out: [t, heads, head_dim]"""
        ...

    def begin_decode(
        self, state: RowState, order: Tensor, step_tables: Tensor, block_size: int, out: DecodeInputs
    ) -> None:
        """`decode_state.begin_decode`"""
        ...

    def finish_decode(self, state: RowState, order: Tensor, sampled: Tensor) -> None:
        """`decode_state.finish_decode`"""
        ...


class TorchOperations:
    """In torch, on any device."""

    def rms_norm(self, x: Tensor, norm: Norm, out: Tensor) -> None:
        out.copy_(_normed(x, norm))

    def linear(self, x: Tensor, matrix: Matrix, out: Tensor, *, norm: Norm | None = None) -> None:
        x = x if norm is None else _normed(x, norm)
        out.copy_(F.linear(x, matrix.weight, matrix.bias))

    def add_linear(self, x: Tensor, matrix: Matrix, residual: Tensor) -> None:
        residual.add_(F.linear(x, matrix.weight, matrix.bias))

    def gated_linear(self, x: Tensor, matrix: Matrix, out: Tensor, activation: Activation, norm: Norm) -> None:
        gate, up = F.linear(_normed(x, norm), matrix.weight, matrix.bias).chunk(2, dim=-1)
        out.copy_((F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")).mul_(up))

    def add_norm(self, x: Tensor, norm: Norm, residual: Tensor) -> None:
        residual.add_(_normed(x, norm))

    def rotary_kv_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        table: Tensor,
        slot_mapping: Tensor,
        cache: PagedCache,
        q_out: Tensor,
        head_norm: Norm | None,
    ) -> None:
        num_heads, kv_heads, head_dim = q_out.shape[1], cache.keys.shape[1], q_out.shape[2]
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        turned, values = heads[:, : num_heads + kv_heads], heads[:, num_heads + kv_heads :]
        if head_norm is not None:
            turned = _normed(turned, head_norm)
        cos, sin = table.index_select(0, positions).unbind(1)
        turned = torch.addcmul(turned * cos, turned.roll(head_dim // 2, -1), sin)
        q_out.copy_(turned[:, :num_heads])
        slots = (slot_mapping + cache.keys.shape[0]).remainder_(cache.keys.shape[0])  # -1 is the last one
        cache.keys.index_copy_(0, slots, turned[:, num_heads:].to(cache.keys.dtype))
        cache.values.index_copy_(0, slots, values.to(cache.values.dtype))

    def attend(
        self, q: Tensor, cache: PagedCache, rows: RowTables, out: Tensor, *, scale: float, window: int | None
    ) -> None:
        if rows.query_starts is None:
            out.copy_(_attend_rows(q[:, None], cache, rows.block_tables, rows.kv_lens, scale, window)[:, 0])
            return
        starts = rows.query_starts.tolist()
        for row, (start, end) in enumerate(pairwise(starts)):
            one = slice(row, row + 1)
            queries, tables = q[None, start:end], rows.block_tables[one]
            out[start:end] = _attend_rows(queries, cache, tables, rows.kv_lens[one], scale, window)[0]

    def begin_decode(
        self, state: RowState, order: Tensor, step_tables: Tensor, block_size: int, out: DecodeInputs
    ) -> None:
        begin_decode(state, order, step_tables, block_size, out)

    def finish_decode(self, state: RowState, order: Tensor, sampled: Tensor) -> None:
        finish_decode(state, order, sampled)


def _normed(x: Tensor, norm: Norm) -> Tensor:
    """As `models.norms.rms_norm` rounds: once, at the end."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(norm.eps).rsqrt_()
    return scale.mul(wide).mul_(norm.weight).to(x.dtype)


def _attend_rows(
    q: Tensor, cache: PagedCache, block_tables: Tensor, kv_lens: Tensor, scale: float, window: int | None
) -> Tensor:
    """q: [n, l, num_heads, head_dim], the last l tokens of each row. Returns q's shape; zeros where a row sees nothing.
    What lies in slots that a row has not written, NaN included, does not reach it."""
    (n, length, num_heads, head_dim), kv_heads = q.shape, cache.keys.shape[1]
    size = block_tables.shape[1] * cache.block_size
    keys_at = torch.arange(size, device=q.device)
    slots = block_tables.long()[:, keys_at // cache.block_size] * cache.block_size + keys_at % cache.block_size
    queries_at = kv_lens.long()[:, None] - length + torch.arange(length, device=q.device)
    is_seen = keys_at <= queries_at[:, :, None]
    if window is not None:
        is_seen &= keys_at > queries_at[:, :, None] - window
    is_written = (keys_at < kv_lens[:, None])[:, :, None, None]
    k, v = (
        torch.where(is_written, side[slots.clamp(0, side.shape[0] - 1)], 0).float()
        for side in (cache.keys, cache.values)
    )
    grouped = q.float().view(n, length, kv_heads, num_heads // kv_heads, head_dim)
    scores = torch.einsum("nlkgd,ntkd->nlkgt", grouped, k) * scale
    is_seen = is_seen[:, :, None, None]
    weights = torch.where(is_seen, scores, -torch.inf).softmax(-1)
    out = torch.einsum("nlkgt,ntkd->nlkgd", torch.where(is_seen, weights, 0), v)
    return out.reshape(n, length, num_heads, head_dim).to(q.dtype)
