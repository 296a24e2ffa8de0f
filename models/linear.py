"""y = x Wᵀ, with the weight held in the layout that is fastest where it is.

On the CPU a library blocks the weight once, at load ("packed"); `F.linear` would walk the plain layout at each call.
oneDNN packs float32, and bfloat16 where the CPU multiplies it. Where it does not (x86 without AVX-512BW), `F.linear`
takes bfloat16 row by row and rounds what it returns. There FBGEMM packs the weight as float16, the same two bytes, and
multiplies rows of float32 in float32. Where that is missing too (no AVX2), the weight is widened to float32.

Median microseconds, weights not in the cache, two threads of an AVX2 CPU (AMD EPYC 7003), torch 2.13, calls in turns:

    weight        rows   float16, FBGEMM   widened to float32, oneDNN   bfloat16, F.linear
    [3072, 576]      1               171                          322                  209
                     2               188                          347                  381
                     4               195                          393                  728
                    16               471                          698                2,916
                   128             2,550                        3,026               23,029
    [49152, 576]     1             2,478                        4,927                3,228
                    16             8,301                       10,161               46,953

Few rows are bound by reading the weight: half the bytes, half the time. Widening pieces of a bfloat16 weight into the
cache before each multiplication takes about twice as long as FBGEMM from 4 rows on.
A number of rows not seen before costs oneDNN about 0.5 ms once per weight shape (it generates code).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_TYPICAL_ROWS = 16
"""Rows that oneDNN chooses the layout for; on the CPUs measured it takes the same one for 1 to 100."""

_HALF_BLOCK = 512


class Linear(Protocol):
    """A weight [out_features, in_features] that multiplies rows, and the bias [out_features] that is added, if any."""

    @property
    def num_bytes(self) -> int:
        """Bytes held beside the caller's tensors."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_rows, in_features] of the weight's `compute_dtype`. Returns [num_rows, out_features] of the same."""
        ...


class PlainLinear:
    """The weight as it came; `shared`: somebody else holds it too (a tied head), so its bytes are not counted here."""

    __slots__ = ("_bias", "_weight", "num_bytes")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, shared: bool = False) -> None:
        self._weight, self._bias = weight, bias
        self.num_bytes = (0 if shared else weight.nbytes) + _bytes_of(bias)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class PackedLinear:
    """Packed by oneDNN in the weight's dtype: float32, or bfloat16 where `can_pack` it."""

    __slots__ = ("_bias", "_packed", "num_bytes")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = bias
        self.num_bytes = weight.nbytes + _bytes_of(bias)

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


class HalfLinear:
    """Packed by FBGEMM as float16; x, bias and y are float32.

    float16 holds every bfloat16 from 2⁻¹⁴ to 65,504 exactly and smaller ones to within 2⁻²⁵, which is nothing beside
    the other weights of a row. Larger ones it cannot hold.
    """

    __slots__ = ("_packed", "num_bytes")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed: torch.ScriptObject = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias)
        matrix_bytes = weight.shape[0] * held_columns(weight.shape[1], torch.float16) * torch.float16.itemsize
        self.num_bytes = matrix_bytes + _bytes_of(bias)

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return y


def hold_linear(weight: Tensor, bias: Tensor | None = None, *, shared: bool = False) -> Linear:
    """`weight` [out_features, in_features] and `bias` [out_features], of a model of their dtype, in the way that is
    fastest there.

    `shared`: somebody else holds this weight too (a tied head).
    """
    dtype, device = weight.dtype, weight.device
    if not len(weight):  # that of another stage
        return PlainLinear(weight, bias)
    width = compute_dtype(dtype, device)
    bias = None if bias is None else bias.to(width)
    if held_dtype(dtype, device) == torch.float16 != dtype and _fits_half(weight):
        return HalfLinear(weight, bias)
    weight = weight.to(width)
    if is_packed(dtype, device):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias, shared=shared)


def held_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype in which a model of `dtype` holds its matrices (one that float16 cannot hold is widened instead)."""
    if device.type != "cpu" or can_pack(dtype) or not can_pack(torch.float32):
        return dtype
    return torch.float16 if dtype == torch.bfloat16 and can_pack_half() else torch.float32


def held_columns(columns: int, dtype: torch.dtype) -> int:
    """Columns that a matrix held in `dtype` takes: FBGEMM fills float16 ones up to whole blocks of 512."""
    return -(-columns // _HALF_BLOCK) * _HALF_BLOCK if dtype == torch.float16 else columns


def compute_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of the rows that a model of `dtype` multiplies: float32 where the CPU has no arithmetic for `dtype`."""
    return dtype if held_dtype(dtype, device) == dtype else torch.float32


def is_packed(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a model of `dtype` packs its matrices, so that a tied head is a second copy."""
    return device.type == "cpu" and (can_pack(dtype) or held_dtype(dtype, device) != dtype)


@lru_cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs and multiplies `dtype` on this CPU, tried on a small weight."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return _is_right(PackedLinear, dtype, dtype)


@lru_cache
def can_pack_half() -> bool:
    """Whether FBGEMM packs float16 on this CPU and multiplies float32 with it, tried on a small weight."""
    return _is_right(HalfLinear, torch.bfloat16, torch.float32)


def _is_right(packed_class: type[PackedLinear | HalfLinear], dtype: torch.dtype, row_dtype: torch.dtype) -> bool:
    try:
        y = packed_class(torch.ones(16, 32, dtype=dtype))(torch.ones(2, 32, dtype=row_dtype))
    except (AttributeError, RuntimeError):  # built without the library, or the CPU lacks the instructions
        return False
    return bool((y == 32).all())


def _bytes_of(bias: Tensor | None) -> int:
    return 0 if bias is None else bias.nbytes


def _fits_half(weight: Tensor) -> bool:
    """Whether float16 can hold all of it; FBGEMM would clip the rest."""
    lowest, highest = (float(value) for value in weight.aminmax())  # a bfloat16 comparison would round the limit
    limit = torch.finfo(torch.float16).max
    return -limit <= lowest and highest <= limit
