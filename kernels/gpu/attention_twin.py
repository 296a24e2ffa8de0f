"""Attention over a paged cache in plain torch, one row at a time: what both attention kernels are compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def attend_plainly(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    kv_lens: Tensor,
    *,
    block_size: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """Arguments as `varlen_attention`'s; q and the caches in the dtype to compute in. Returns `out`; zeros
    where no row is."""
    out = torch.zeros_like(q)
    bounds = query_starts.tolist()
    for row, kv_len in enumerate(kv_lens.tolist()):
        begin, end = bounds[row], bounds[row + 1]
        if kv_len == 0 or begin == end:
            continue
        positions = torch.arange(kv_len, device=q.device)
        slots = block_tables[row, positions // block_size].long() * block_size + positions % block_size
        group = q.shape[1] // key_cache.shape[1]
        keys, values = (x[slots].repeat_interleave(group, 1) for x in (key_cache, value_cache))
        behind = positions[kv_len - (end - begin) :, None] - positions  # [query, key]: how far the key lies back
        is_seen = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end], keys) * scale
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return out
