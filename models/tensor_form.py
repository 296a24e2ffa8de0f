"""A model's weights as torch holds them."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ..checkpoints.model_weights import held_weights
from ..checkpoints.shape import ModelShape
from ..kernels.cpu.quantized_rows import Float32s
from .decoder_weights import EMBEDDING, HEAD
from .linear import Linear, compute_dtype, held_columns, held_dtype, hold_linear, is_packed
from .parts import RowsOfPiece, Sizes, first_rows


class TensorStack:
    """As one tensor."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> None:
        self.firsts, self.missing_rows = first_rows(sizes)
        self._size = (self.missing_rows, *next(iter(sizes.values()))[1:])
        self._dtype, self._device = dtype, device
        self._whole: Tensor | None = None

    def put(self, first_row: int, rows: RowsOfPiece) -> None:
        assert isinstance(rows, Tensor)
        if self._whole is None:
            self._whole = torch.empty(self._size, dtype=self._dtype, device=self._device)
        self._whole[first_row : first_row + len(rows)].copy_(rows)
        self.missing_rows -= len(rows)

    def take(self) -> Tensor:
        assert self.missing_rows == 0
        whole, self._whole = self._whole, None
        return torch.empty(self._size, dtype=self._dtype, device=self._device) if whole is None else whole


class PlainTensors:
    """What every form that torch holds has alike: tensors in `dtype` on `device`, norms in float32."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device

    def matrix(self, sizes: Sizes) -> TensorStack:
        return TensorStack(sizes, self._dtype, self._device)

    def bias(self, sizes: Sizes) -> TensorStack:
        return TensorStack(sizes, self._dtype, self._device)

    def hold_embedding(self, matrix: Tensor) -> Tensor:
        return matrix

    def hold_vector(self, norm: Float32s) -> Tensor:
        return torch.from_numpy(norm).to(self._device)


class TensorForm(PlainTensors):
    """The matrices as `hold_linear` chooses."""

    def hold_matrix(self, matrix: Tensor, bias: Tensor | None = None) -> Linear:
        return hold_linear(matrix, bias)

    def tie_head(self, embedding: Tensor) -> Linear:
        return hold_linear(embedding, shared=True)


def planned_weight_bytes(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> int:
    """`Weights.num_bytes` of a model that is not loaded yet, if all its matrices can be held in `held_dtype`."""
    sizes = {name: size for (_, name), size in held_weights(shape).items()}
    held, width = held_dtype(dtype, device), compute_dtype(dtype, device)
    embedding = sizes.pop(EMBEDDING)
    if shape.tie_word_embeddings and is_packed(dtype, device):
        sizes[HEAD] = embedding
    num_bytes = prod(embedding) * dtype.itemsize
    for name, size in sizes.items():
        if len(size) == 2:
            num_bytes += size[0] * held_columns(size[1], held) * held.itemsize
        else:
            num_bytes += size[0] * (torch.float32 if name.endswith("norm.weight") else width).itemsize
    return num_bytes
