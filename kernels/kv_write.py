"""Write the keys and values of a step into the paged cache.

    cache[slot_mapping[i]] = x[i]

A slot is block_id * block_size + offset. Slots of one step are distinct: each belongs to one token.
"""

from __future__ import annotations

from torch import Tensor


def write_kv(key_cache: Tensor, value_cache: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
    """In place. key_cache, value_cache: [num_slots, kv_heads, head_dim]; k, v: [n, kv_heads, head_dim], any float
    dtype; slot_mapping: int64 [n]."""
    key_cache.index_copy_(0, slot_mapping, k.to(key_cache.dtype))
    value_cache.index_copy_(0, slot_mapping, v.to(value_cache.dtype))
