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
from ..device_operations import Activation, Matrix, Norm, PagedCache, RowTables
from .attention_backend import AttentionName, make_attention
from .decode_ends import begin_decode, finish_decode
from .launch import num_sms
from .linear_choice import linear_by_parts, prefers_rows
from .linear_rows import linear_rows
from .rms_norm import rms_norm
from .rotary_kv_write import rotary_kv_write


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

    def __init__(
        self,
        sizes: LayerSizes,
        max_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        attention: AttentionName = "triton",
    ) -> None:
        """Raises ConfigError if who is to compute attention is not installed."""
        self._normed = torch.empty(max_tokens, sizes.hidden_size, dtype=dtype, device=device)
        self._gate_up = torch.empty(max_tokens, 2 * sizes.intermediate_size, dtype=dtype, device=device)
        self._attention = make_attention(attention, sizes.num_heads, sizes.kv_heads, sizes.head_dim, device)

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
        self._attention.attend(q, cache, rows, out, scale=scale, window=window)

    def begin_decode(
        self, state: RowState, order: Tensor, step_tables: Tensor, block_size: int, out: DecodeInputs
    ) -> None:
        begin_decode(state, order, step_tables, block_size, out)

    def finish_decode(self, state: RowState, order: Tensor, sampled: Tensor) -> None:
        finish_decode(state, order, sampled)

    def _prefers_rows(self, x: Tensor, out: Tensor, *, gated: bool = False) -> bool:
        return prefers_rows(*x.shape, out.shape[1], gated=gated, num_sms=num_sms(x.device))
