"""Rotary position embedding over half-split heads (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of each head by its angle.

    heads: [num_tokens, num_heads, head_dim]; cos, sin: [num_tokens, 1, head_dim], rows of `rotary_table`.
    """
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
