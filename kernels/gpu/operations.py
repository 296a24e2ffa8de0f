"""The operations of a decoder layer by this folder's kernels, and by cuBLAS where that is faster.

Of a few rows a linear is one kernel with the norm before it and the activation or the addition behind it; more rows are
bound by arithmetic, which cuBLAS does, with a kernel for what stands around it (`linear_choice`). A dtype or a shape
that a kernel does not take is computed by torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..decode_state import DecodeInputs, RowState
from ..device_operations import Activation, Matrix, Norm, PagedCache, RowTables, TorchOperations
from .decode_attention import DecodeWorkspace, decode_attention
from .decode_ends import begin_decode, finish_decode
from .launch import num_sms
from .linear_choice import linear_by_parts, prefers_rows
from .linear_rows import linear_rows
from .rms_norm import rms_norm
from .rotary_kv_write import rotary_kv_write
from .varlen_attention import varlen_attention

MAX_DECODE_TOKENS = 8
"""Of a row: so few are bound by reading its keys."""


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """What scratch memory is made for."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    kv_heads: int
    head_dim: int


class GpuOperations:
    """For steps of up to `max_tokens` tokens of one stream: calls share scratch memory."""

    def __init__(self, sizes: LayerSizes, max_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self._normed = torch.empty(max_tokens, sizes.hidden_size, dtype=dtype, device=device)
        self._gate_up = torch.empty(max_tokens, 2 * sizes.intermediate_size, dtype=dtype, device=device)
        self._sizes, self._device = sizes, device
        self._workspaces: dict[int, DecodeWorkspace] = {}
        """By the power of two that holds the query tokens of each row."""
        self._torch = TorchOperations()

    def rms_norm(self, x: Tensor, norm: Norm, out: Tensor) -> None:
        rms_norm(x, norm.weight, norm.eps, out)

    def linear(self, x: Tensor, matrix: Matrix, out: Tensor, *, norm: Norm | None = None) -> None:
        weight, bias = matrix
        if self._prefers_rows(x, out):
            linear_rows(x, weight, out, bias=bias, norm=norm)
        else:
            linear_by_parts(x, weight, out, bias=bias, norm=None if norm is None else (*norm, self._normed[: len(x)]))

    def add_linear(self, x: Tensor, matrix: Matrix, residual: Tensor) -> None:
        weight, bias = matrix
        add = linear_rows if self._prefers_rows(x, residual) else linear_by_parts
        add(x, weight, residual, bias=bias, residual=residual)

    def gated_linear(self, x: Tensor, matrix: Matrix, out: Tensor, activation: Activation, norm: Norm) -> None:
        weight, bias = matrix
        if self._prefers_rows(x, out, gated=True):
            linear_rows(x, weight, out, bias=bias, norm=norm, activation=activation)
        else:
            num_tokens = len(x)
            room, wide = self._normed[:num_tokens], self._gate_up[:num_tokens]
            linear_by_parts(x, weight, out, bias=bias, norm=(*norm, room), activation=(activation, wide))

    def add_norm(self, x: Tensor, norm: Norm, residual: Tensor) -> None:
        normed = self._normed[: len(x)]
        rms_norm(x, norm.weight, norm.eps, normed)
        residual.add_(normed)

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
        norm_weight, eps = (None, 0.0) if head_norm is None else head_norm
        keys, values = cache.keys, cache.values
        rotary_kv_write(qkv, positions, table, slot_mapping, keys, values, q_out, norm_weight=norm_weight, eps=eps)

    def attend(
        self, q: Tensor, cache: PagedCache, rows: RowTables, out: Tensor, *, scale: float, window: int | None
    ) -> None:
        keys, values, size = cache
        if keys.dtype != q.dtype or size & (size - 1):
            self._torch.attend(q, cache, rows, out, scale=scale, window=window)
        elif rows.max_query_len <= MAX_DECODE_TOKENS:
            decode_attention(
                q,
                keys,
                values,
                rows.block_tables,
                rows.kv_lens,
                out,
                block_size=size,
                scale=scale,
                window=window,
                workspace=self._workspace(rows.max_query_len),
                query_starts=rows.query_starts,
                max_query_len=rows.max_query_len,
            )
        else:
            assert rows.query_starts is not None
            varlen_attention(
                q,
                keys,
                values,
                rows.block_tables,
                rows.query_starts,
                rows.kv_lens,
                out,
                block_size=size,
                scale=scale,
                window=window,
                max_query_len=rows.max_query_len,
            )

    def begin_decode(
        self, state: RowState, order: Tensor, step_tables: Tensor, block_size: int, out: DecodeInputs
    ) -> None:
        begin_decode(state, order, step_tables, block_size, out)

    def finish_decode(self, state: RowState, order: Tensor, sampled: Tensor) -> None:
        finish_decode(state, order, sampled)

    def _workspace(self, max_query_len: int) -> DecodeWorkspace:
        length = 1 << (max_query_len - 1).bit_length()
        if (there := self._workspaces.get(length)) is None:
            heads, kv_heads, head_dim = self._sizes.num_heads, self._sizes.kv_heads, self._sizes.head_dim
            there = self._workspaces[length] = DecodeWorkspace(self._device, heads, kv_heads, head_dim, length)
        return there

    def _prefers_rows(self, x: Tensor, out: Tensor, *, gated: bool = False) -> bool:
        return prefers_rows(*x.shape, out.shape[1], gated=gated, num_sms=num_sms(x.device))
