"""y = x Wᵀ, with the weight held in the layout that is fastest where it is.

On the CPU oneDNN blocks the weight once, at load ("packed"); `F.linear` would walk the plain layout at each call.
Where the CPU has no bfloat16 arithmetic (x86 without AVX-512BW), oneDNN packs no bfloat16 and `F.linear` multiplies it
row by row. There a bfloat16 model keeps its weights' values widened to float32 (`compute_dtype`): twice the bytes, and
from 2 rows on several times as fast.

[3072, 576] times 1 / 4 / 16 / 128 rows, microseconds, one thread of an AVX2 CPU (AMD EPYC, shared), torch 2.13, best of
40 in turns: float32 packed 184 / 325 / 1,059 / 6,004, plain 173 / 462 / 1,135 / 5,853; bfloat16 widened and packed
197 / 340 / 1,076 / 6,064, plain 366 / 1,428 / 5,814 / 45,706. So packing is nearly neutral for float32 there and what
counts is the widening. A number of rows not seen before costs about 0.5 ms once per weight shape (oneDNN generates code
for it).
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_TYPICAL_ROWS = 16
"""Rows that oneDNN chooses the layout for; on the CPUs measured it takes the same one for 1 to 100."""


class Linear:
    """A weight [out_features, in_features] that multiplies rows; no bias.

    Packed, the plain `weight` is not kept. `num_bytes` is what it holds beside the caller's tensor: 0 if it is `shared`
    (a tied head) and not packed.
    """

    __slots__ = ("_is_packed", "_weight", "num_bytes")

    def __init__(self, weight: Tensor, *, shared: bool = False) -> None:
        self._is_packed = weight.device.type == "cpu" and can_pack(weight.dtype)
        self._weight: Tensor = (
            torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS) if self._is_packed else weight
        )
        self.num_bytes = 0 if shared and not self._is_packed else weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_rows, in_features] in the weight's dtype. Returns [num_rows, out_features] in the same dtype."""
        if not self._is_packed:
            return F.linear(x, self._weight)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, None, "none", [], "")
        return y


def compute_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype in which a model of `dtype` holds its weights and multiplies: float32 where bfloat16 is not native."""
    if device.type == "cpu" and not can_pack(dtype) and can_pack(torch.float32):
        return torch.float32
    return dtype


@lru_cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs and multiplies `dtype` on this CPU, tried on a small weight."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight, x = torch.ones(16, 32, dtype=dtype), torch.ones(2, 32, dtype=dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        y = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):  # built without oneDNN, or the CPU lacks the instructions
        return False
    return bool((y == 32).all())
