"""Attention of prompts by FlashAttention 3 (Shah et al. 2024, arXiv:2407.08608), if it is installed; Hopper, bfloat16
and float16.

It comes as a module of its own, `flash_attn_interface`, whose function takes keys and values as a cache, and with vLLM,
whose function takes them as sequences. Both read a block table. What neither takes (float32, a head of more than 256)
is for the kernels of this folder, and so are rows of a few tokens, which these compute faster: on one H200, 8B, the
library takes 1.04 to 1.7 times as long at 1 to 256 rows of one token, and 0.64 to 0.77 times at prompts of 2,048 and
more (`bench.gpu_kernels.attention_backends`, 2026-11-30, vLLM's build; the other module was not tried).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from ..device_operations import PagedCache, RowTables
from .attention_backend import MAX_DECODE_TOKENS, AttentionBackend

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, float, tuple[int, int], Tensor], None]
"""(q, keys, values, block_tables, query_starts, kv_lens, max_query_len, scale, window, out); keys and values by block,
[num_blocks, block_size, kv_heads, head_dim]; a window is (keys before a token's own that it sees, 0), -1: all."""
MAX_HEAD_DIM = 256


class FlashAttention:
    """`attend` of a library, beside the kernels that take what it does not."""

    def __init__(self, function: Attend, otherwise: AttentionBackend) -> None:
        self._function, self._otherwise = function, otherwise

    def attend(
        self, q: Tensor, cache: PagedCache, rows: RowTables, out: Tensor, *, scale: float, window: int | None
    ) -> None:
        keys, values, size = cache
        is_taken = q.dtype in (torch.bfloat16, torch.float16) and keys.dtype == q.dtype and q.shape[2] <= MAX_HEAD_DIM
        if rows.query_starts is None or rows.max_query_len <= MAX_DECODE_TOKENS or not is_taken:
            self._otherwise.attend(q, cache, rows, out, scale=scale, window=window)
            return
        by_block = (-1, size, *keys.shape[1:])
        sees = (-1, 0) if window is None else (window - 1, 0)
        self._function(
            q,
            keys.view(by_block),
            values.view(by_block),
            rows.block_tables,
            rows.query_starts,
            rows.kv_lens,
            rows.max_query_len,
            scale,
            sees,
            out,
        )


def find_function() -> Attend | None:
    """None: it is not installed."""
    try:
        return _of_cache(import_module("flash_attn_interface").flash_attn_with_kvcache)
    except (ImportError, AttributeError):
        pass
    try:
        return _of_sequences(import_module("vllm.vllm_flash_attn").flash_attn_varlen_func)
    except (ImportError, AttributeError):
        return None


def _of_cache(function: Callable[..., Tensor]) -> Attend:
    def attend(
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        block_tables: Tensor,
        query_starts: Tensor,
        kv_lens: Tensor,
        max_query_len: int,
        scale: float,
        window: tuple[int, int],
        out: Tensor,
    ) -> None:
        found = function(
            q,
            keys,
            values,
            cache_seqlens=kv_lens,
            page_table=block_tables,
            cu_seqlens_q=query_starts,
            max_seqlen_q=max_query_len,
            softmax_scale=scale,
            causal=True,
            window_size=window,
        )
        out.copy_(found)

    return attend


def _of_sequences(function: Callable[..., Tensor]) -> Attend:
    def attend(
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        block_tables: Tensor,
        query_starts: Tensor,
        kv_lens: Tensor,
        max_query_len: int,
        scale: float,
        window: tuple[int, int],
        out: Tensor,
    ) -> None:
        function(
            q,
            keys,
            values,
            max_seqlen_q=max_query_len,
            cu_seqlens_q=query_starts,
            max_seqlen_k=block_tables.shape[1] * keys.shape[1],
            seqused_k=kv_lens,
            softmax_scale=scale,
            causal=True,
            window_size=list(window),
            block_table=block_tables,
            out=out,
            fa_version=3,
        )

    return attend
