"""Who computes attention over the paged cache on a GPU: the kernels of this folder, or a library."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from ...errors import ConfigError
from ..device_operations import PagedCache, RowTables, TorchOperations
from .decode_attention import DecodeWorkspace, decode_attention
from .varlen_attention import varlen_attention

AttentionName = Literal["triton", "flash_attention"]
MAX_DECODE_TOKENS = 8
"""Of a row: so few are bound by reading its keys."""


class AttentionBackend(Protocol):
    """For steps of one stream: calls may share scratch memory."""

    def attend(
        self, q: Tensor, cache: PagedCache, rows: RowTables, out: Tensor, *, scale: float, window: int | None
    ) -> None:
        """As `Operations.attend`; its shapes are those of its arguments, and it asks the host for nothing, so that a
        graph can record it."""
        ...


class TritonAttention:
    """The kernels of this folder; torch where they do not take a cache."""

    def __init__(self, num_heads: int, kv_heads: int, head_dim: int, device: torch.device) -> None:
        self._heads, self._device = (num_heads, kv_heads, head_dim), device
        self._workspaces: dict[int, DecodeWorkspace] = {}
        """By the power of two that holds the query tokens of each row."""
        self._torch = TorchOperations()

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

    def _workspace(self, max_query_len: int) -> DecodeWorkspace:
        length = 1 << (max_query_len - 1).bit_length()
        if (there := self._workspaces.get(length)) is None:
            there = self._workspaces[length] = DecodeWorkspace(self._device, *self._heads, length)
        return there


def make_attention(
    name: AttentionName, num_heads: int, kv_heads: int, head_dim: int, device: torch.device
) -> AttentionBackend:
    """Raises ConfigError if the library is not installed."""
    own = TritonAttention(num_heads, kv_heads, head_dim, device)
    if name == "triton":
        return own
    from .flash_attention import FlashAttention, find_function

    function = find_function()
    if function is None:
        raise ConfigError(
            'attention = "flash_attention": FlashAttention 3 is not installed',
            advice='install it (its module is `flash_attn_interface`, or comes with vLLM), or set attention = "triton"',
        )
    return FlashAttention(function, own)
