"""Who computes attention: a library is given what it wants, and what it does not take is for our kernels."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType

import pytest
import torch

from callboard.errors import ConfigError
from callboard.kernels.device_operations import PagedCache, RowTables
from callboard.kernels.gpu.attention_backend import make_attention
from callboard.kernels.gpu.attention_twin import attend_plainly
from callboard.kernels.gpu.flash_attention import find_function
from callboard.tests.kernels.gpu import DEVICE, IS_INTERPRETED, relative_error
from callboard.tests.kernels.gpu_caches import PagedCache as Cache

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 4, 2, 64, 16


def rows_of_sequences(q, keys, values, tables, starts, lens, scale, window):
    """As the library says of itself: causal from the bottom right, keys from `window[0]` before a token's own on."""
    out = torch.zeros_like(q)
    for row, (begin, end) in enumerate(itertools.pairwise(starts.tolist())):
        length, num_queries = int(lens[row]), end - begin
        flat = (tables[row].long()[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:length]
        k, v = (each.reshape(-1, KV_HEADS, HEAD_DIM)[flat].float() for each in (keys, values))
        for token in range(num_queries):
            last = length - num_queries + token
            first = 0 if window[0] < 0 else max(0, last - window[0])
            for head in range(HEADS if last >= 0 else 0):
                seen = k[first : last + 1, head // 2] @ q[begin + token, head].float() * scale
                out[begin + token, head] = (seen.softmax(0) @ v[first : last + 1, head // 2]).to(q.dtype)
    return out


def flash_attn_with_kvcache(
    q, k_cache, v_cache, *, cache_seqlens, page_table, cu_seqlens_q, max_seqlen_q, softmax_scale, causal, window_size
):
    assert causal and max_seqlen_q == int(cu_seqlens_q.diff().max()) and isinstance(window_size, tuple)
    return rows_of_sequences(
        q, k_cache, v_cache, page_table, cu_seqlens_q, cache_seqlens, softmax_scale, window_size
    )  # fmt: skip


def flash_attn_varlen_func(
    q, k, v, *, max_seqlen_q, cu_seqlens_q, max_seqlen_k, seqused_k, softmax_scale, causal, window_size, block_table,
    out, fa_version,
):  # fmt: skip
    assert causal and fa_version == 3 and max_seqlen_k >= int(seqused_k.max())
    assert max_seqlen_q == int(cu_seqlens_q.diff().max()) and isinstance(window_size, list)
    out.copy_(rows_of_sequences(q, k, v, block_table, cu_seqlens_q, seqused_k, softmax_scale, window_size))


def refuse(*args, **options):
    raise AssertionError("this is not for the library")


refuse.__name__ = "flash_attn_with_kvcache"


def finite(make):
    """What a library may be shown of a cache: numbers where nobody wrote, blocks that exist behind those of a row."""

    def init(self, *args):
        make(self, *args)
        self.keys, self.values = self.keys.nan_to_num(), self.values.nan_to_num()
        self.block_tables = self.block_tables.remainder(len(self.keys) // BLOCK)

    return init


def installed(monkeypatch, function):
    """A library that has this function, if any; the other one is missing."""
    names = {
        "flash_attn_interface": "flash_attn_with_kvcache",
        "vllm.vllm_flash_attn": "flash_attn_varlen_func",
    }
    for module_name, name in names.items():
        module = ModuleType(module_name)
        is_there = function is not None and function.__name__ == name
        if is_there:
            setattr(module, name, function)
        monkeypatch.setitem(sys.modules, module_name, module if is_there else None)


@pytest.mark.parametrize("function", [flash_attn_with_kvcache, flash_attn_varlen_func], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("query_lens", "window"), [([9, 1, 20], None), ([1, 2, 12], 5)], ids=str)
@pytest.mark.skipif(not IS_INTERPRETED, reason="the library's stand-ins compute on the host")
def test_a_library_is_told_what_it_takes(monkeypatch, function, query_lens, window):
    installed(monkeypatch, function)
    check(make_attention("flash_attention", HEADS, KV_HEADS, HEAD_DIM, DEVICE), query_lens, window)


def check(attention, query_lens, window, dtype=torch.bfloat16):
    kv_lens = [40, 3, 33]
    cache = Cache(kv_lens, KV_HEADS, HEAD_DIM, dtype, BLOCK)
    starts = torch.tensor([0, *itertools.accumulate(query_lens or [1, 1, 1])], dtype=torch.int32)
    q = torch.randn(int(starts[-1]), HEADS, HEAD_DIM, generator=cache.generator).to(DEVICE, dtype)
    out = torch.full_like(q, torch.nan)
    rows = RowTables(
        cache.block_tables, cache.kv_lens, None if query_lens is None else starts.to(DEVICE), max(query_lens or [1])
    )
    paged = PagedCache(cache.keys, cache.values, BLOCK)
    attention.attend(q, paged, rows, out, scale=HEAD_DIM**-0.5, window=window)
    expected = attend_plainly(
        q.cpu().double(), *cache.on_cpu(torch.float64, starts), block_size=BLOCK, scale=HEAD_DIM**-0.5, window=window
    )
    assert relative_error(out, expected) < 1e-2


@pytest.mark.skipif(IS_INTERPRETED or find_function() is None, reason="FlashAttention 3 is not here")
@pytest.mark.parametrize(("query_lens", "window"), [([9, 1, 20], None), ([1, 2, 12], 5)], ids=str)
def test_the_library_computes_what_the_twin_does(query_lens, window, monkeypatch):
    monkeypatch.setattr(Cache, "__init__", finite(Cache.__init__))
    check(make_attention("flash_attention", HEADS, KV_HEADS, HEAD_DIM, DEVICE), query_lens, window)


@pytest.mark.parametrize(
    ("query_lens", "dtype"), [([9, 1, 20], torch.float32), (None, torch.bfloat16), ([8, 1, 2], torch.bfloat16)], ids=str
)
def test_what_a_library_does_not_take_or_takes_longer_for_is_ours(monkeypatch, query_lens, dtype):
    installed(monkeypatch, refuse)
    check(make_attention("flash_attention", HEADS, KV_HEADS, HEAD_DIM, DEVICE), query_lens, None, dtype)


def test_a_library_that_is_missing_is_named(monkeypatch):
    installed(monkeypatch, None)
    with pytest.raises(ConfigError, match="FlashAttention 3 is not installed"):
        make_attention("flash_attention", HEADS, KV_HEADS, HEAD_DIM, DEVICE)
