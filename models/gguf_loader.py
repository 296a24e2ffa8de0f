"""Tensors of a GGUF file under their canonical names, dequantized as they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.gguf_file import GGUFTensor, read_gguf
from ..checkpoints.gguf_types import BLOCKS
from ..checkpoints.model_weights import model_weights
from ..checkpoints.shape import ModelShape
from ..errors import UnsupportedModel
from ..kernels.cpu.quantized_rows import Float32s
from .gguf_dequantize import dequantize
from .gguf_order import in_canonical_order
from .parts import RowsOfPiece
from .tensors import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor


def open_gguf(path: str, shape: ModelShape) -> dict[str, StoredTensor]:
    """Every tensor of the file by canonical name (its own name where it has none); no weight is read yet.

    Raises what `read_gguf` does (no such file, cut off, damaged, a tensor type that is not supported).
    """
    tensors = read_gguf(path).tensors
    # mode "c": pages that nobody writes to stay the file's, and torch takes the arrays without a warning;
    # asarray: slicing a memmap costs several times as much as slicing the plain array over it
    file_bytes = np.asarray(np.memmap(path, dtype=np.uint8, mode="c"))
    canonical_names = dict(model_weights(shape).keys())
    stored = {}
    for tensor in tensors.values():
        name = canonical_names.get(tensor.name, tensor.name)
        stored[name] = in_canonical_order(_stored_tensor(file_bytes, path, tensor, name), tensor.name, shape)
    return stored


def _stored_tensor(
    file_bytes: NDArray[np.uint8],
    path: str,
    tensor: GGUFTensor,
    name: str,
) -> StoredTensor:
    shape = tuple(reversed(tensor.dims))
    row_bytes, rest = divmod(tensor.num_bytes, shape[0])
    if len(shape) == 1 and BLOCKS[tensor.type][0] > 1:
        raise UnsupportedModel(f"{path}: {tensor.name} has one axis and is stored as {tensor.type}, not as F32")
    assert rest == 0  # the directory holds whole blocks along the last axis only

    def raw_rows(first: int, last: int) -> NDArray[np.uint8]:
        start = tensor.offset + first * row_bytes
        return file_bytes[start : start + (last - first) * row_bytes].reshape(last - first, row_bytes)

    def read_rows(first: int, last: int) -> Tensor:
        return _to_tensor(raw_rows(first, last), tensor.type).view(last - first, *shape[1:])

    def read_stored(first: int, last: int) -> RowsOfPiece:
        from .gguf_quantized import has_quantized, read_quantized  # whoever computes with torch loads no compiler

        raw = raw_rows(first, last)
        if has_quantized(tensor.type):
            return read_quantized(raw, tensor.type)
        return _to_array(raw, tensor.type).reshape(last - first, *shape[1:])

    def read_columns(first: int, last: int, first_column: int, last_column: int) -> Tensor:
        block_elements, block_bytes = BLOCKS[tensor.type]
        first_block, last_block = first_column // block_elements, -(-last_column // block_elements)
        blocks = np.ascontiguousarray(raw_rows(first, last)[:, first_block * block_bytes : last_block * block_bytes])
        start = first_block * block_elements
        return _to_tensor(blocks, tensor.type)[:, first_column - start : last_column - start]

    return StoredTensor(name, shape, tensor.num_bytes, 1, read_rows, read_stored, read_columns)


def _to_array(raw: NDArray[np.uint8], type_name: str) -> Float32s:
    """uint8 [num_rows, row bytes] -> float32 [num_rows, n]."""
    match type_name:
        case "F32":
            return raw.view(np.float32)
        case "F16":
            return raw.view(np.float16).astype(np.float32)
        case "BF16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case _:
            return dequantize(raw, type_name)


def _to_tensor(raw: NDArray[np.uint8], type_name: str) -> Tensor:
    """uint8 [num_rows, row bytes] -> floating-point [num_rows, n]; what is not quantized stays the file's own pages."""
    import torch

    match type_name:
        case "F32":
            return torch.from_numpy(raw.view(np.float32))
        case "F16":
            return torch.from_numpy(raw.view(np.float16))
        case "BF16":
            return torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16)
        case _:
            return torch.from_numpy(dequantize(raw, type_name))
