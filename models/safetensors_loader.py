"""Tensors of a Hugging Face directory: `model.safetensors`, or shards listed in `model.safetensors.index.json`."""

from __future__ import annotations

from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..checkpoints.mtp_names import MTP_LAYERS
from ..checkpoints.safetensors_files import DTYPE_BYTES, SafetensorsTensor, read_safetensors_directory
from ..errors import CorruptCheckpoint
from .tensors import StoredTensor

_BUFFER_SUFFIX = ".rotary_emb.inv_freq"
"""Of tensors that old checkpoints store and that follow from the configuration."""


def open_safetensors(directory: str) -> dict[str, StoredTensor]:
    """Every weight of the directory by name; nothing but headers is read.

    Raises what `read_safetensors_directory` does (no file, truncated, not where the index says, dtype).
    """
    handles: dict[str, safe_open] = {}
    stored = {}
    for name, tensor in read_safetensors_directory(directory).items():
        if name.endswith(_BUFFER_SUFFIX) or name.startswith(MTP_LAYERS):
            continue
        if tensor.path not in handles:
            handles[tensor.path] = _open(tensor.path)
        stored[name] = _stored_tensor(handles[tensor.path], tensor)
    return stored


def _open(path: str) -> safe_open:
    try:
        return safe_open(Path(path), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpoint(f"{path}: {error}", advice="fetch the file again") from error


def _stored_tensor(handle: safe_open, tensor: SafetensorsTensor) -> StoredTensor:
    view = handle.get_slice(tensor.name)  # type: ignore[no-untyped-call]

    def read_rows(first: int, last: int) -> Tensor:
        rows: Tensor = view[first:last]
        return rows

    def read_columns(first: int, last: int, first_column: int, last_column: int) -> Tensor:
        part: Tensor = view[first:last, first_column:last_column]
        return part

    num_bytes = DTYPE_BYTES[tensor.dtype] * prod(tensor.shape)
    return StoredTensor(tensor.name, tensor.shape, num_bytes, 1, read_rows, read_columns=read_columns)
