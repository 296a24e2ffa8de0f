"""Attention of query tokens over keys and values that lie in slots of a paged cache.

    out[i, h] = sum_t softmax_t(q[i, h] · k[t, h // group] / sqrt(head_dim)) · v[t, h // group]

Query heads come in groups of num_heads / kv_heads that share one key-value head (Ainslie et al. 2023, "GQA").
Three forms of the same sum, each for the case that it is fastest in:

- `attend_causal`: the keys are those of the step itself, nothing is read from the cache;
- `attend_gathered`: keys and values are copied together through the slots, then one fused attention call;
- `attend_indexed`: one query token a row, float32 on a CPU; the cache is read in place, nothing is copied.

Padding repeats the last slot of its row, so no slot is read that the row did not write: what lies in unused slots,
NaN included, never reaches a result.
"""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

with warnings.catch_warnings():
    # Once a process torch says that sparse tensors are in beta; let it be here, where no step runs yet, and unheard.
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
    torch.sparse_csr_tensor(
        torch.zeros(1, dtype=torch.int32),
        torch.empty(0, dtype=torch.int32),
        torch.empty(0),
        size=(0, 1),
        check_invariants=False,
    )


def attend_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q: [b, l, num_heads, head_dim]; k, v: [b, l, kv_heads, head_dim]; token i sees the tokens up to i of its row.
    Returns [b, l, num_heads, head_dim]. Rows that are padded at their end need no mask: padding comes after."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    return out.transpose(1, 2)


def attend_gathered(q: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor, mask: Tensor | None) -> Tensor:
    """q: [b, l, num_heads, head_dim]; caches: [num_slots, kv_heads, head_dim]; slots: int64 [b, t];
    mask: additive, q's dtype, [b, 1, l, t], or None where all is seen. Returns [b, l, num_heads, head_dim]."""
    b, t = slots.shape
    flat = slots.reshape(-1)
    k = key_cache.index_select(0, flat).view(b, t, *key_cache.shape[1:])
    v = value_cache.index_select(0, flat).view(b, t, *value_cache.shape[1:])
    return attend_dense(q, k, v, mask)


def attend_dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """As `attend_gathered`, with k, v: [b, t, kv_heads, head_dim], which may be views of the cache."""
    b, query_len, num_heads, head_dim = q.shape
    k, v = k.to(q.dtype).transpose(1, 2), v.to(q.dtype).transpose(1, 2)
    if query_len == 1:
        # The heads that share a key-value head act as query tokens of it: keys are read once for all of them.
        grouped = q.view(b, k.shape[1], -1, head_dim)
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask).reshape(b, 1, num_heads, head_dim)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


class SlotIndex:
    """What `attend_indexed` needs to know of a batch: made once a step, used by every layer.

    The scores are the non-zeros of a sparse matrix [b * num_heads, num_slots * kv_heads]: row (i, h) has one for each
    slot of row i. torch computes just these products (`sampled_addmm`), and `embedding_bag` sums the value vectors
    by the same index.
    """

    def __init__(self, slots: Tensor, num_heads: int, kv_heads: int, num_slots: int, mask: Tensor | None) -> None:
        """slots: int64 [b, t]; mask: float32 additive [b, 1, t] or None."""
        b, t = slots.shape
        dtype = torch.int32 if max(num_slots * kv_heads, b * num_heads * t) < 2**31 else torch.int64
        kv_head = torch.arange(num_heads) // (num_heads // kv_heads)
        self.shape = (b, num_heads, t)
        self.mask = mask
        self.vectors = (slots[:, None, :] * kv_heads + kv_head[None, :, None]).reshape(-1).to(dtype)
        """[b * num_heads * t]: index into the cache seen as [num_slots * kv_heads, head_dim]."""
        bounds = torch.arange(0, b * num_heads * t + 1, t, dtype=dtype)
        self.offsets = bounds[:-1]
        self.pattern = torch.sparse_csr_tensor(
            bounds,
            self.vectors,
            torch.zeros(b * num_heads * t),
            size=(b * num_heads, num_slots * kv_heads),
            check_invariants=False,
        )


def attend_indexed(q: Tensor, key_cache: Tensor, value_cache: Tensor, index: SlotIndex) -> Tensor:
    """q: float32 [b, num_heads, head_dim]; caches: contiguous float32 [num_slots, kv_heads, head_dim].
    Returns [b, num_heads, head_dim]."""
    b, num_heads, t = index.shape
    head_dim = q.shape[-1]
    scores = torch.sparse.sampled_addmm(
        index.pattern,
        q.reshape(b * num_heads, head_dim),
        key_cache.view(-1, head_dim).t(),
        beta=0.0,
        alpha=1.0 / math.sqrt(head_dim),
    ).values()
    scores = scores.view(b, num_heads, t)
    if index.mask is not None:
        scores += index.mask
    weights = torch.softmax(scores, dim=-1).view(-1)
    out = F.embedding_bag(
        index.vectors, value_cache.view(-1, head_dim), index.offsets, mode="sum", per_sample_weights=weights
    )
    return out.view(b, num_heads, head_dim)
