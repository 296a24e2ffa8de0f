"""The heads of a directory's *.safetensors files: names, dtypes, shapes; no tensor is read.

Format: eight bytes little-endian length, that many bytes of JSON, then the data
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from pathlib import Path

import msgspec

from ..errors import CorruptCheckpoint, UnsupportedModel
from .json_file import decode_json, decode_json_file

DTYPE_BYTES: dict[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
"""Tensor types that can be loaded."""

MAX_NAME_BYTES = 255
"""Of a file name: NAME_MAX of Linux's file systems."""

MAX_HEAD_BYTES = 100_000_000
"""The format's own limit."""


class SafetensorsTensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One tensor of one file."""

    name: str
    dtype: str
    """F32, F16 or BF16."""
    shape: tuple[int, ...]
    """Outermost first, as torch has it."""
    path: str
    """The file that holds it."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_safetensors_directory(directory: str) -> Mapping[str, SafetensorsTensor]:
    """All tensors of the directory, by name: of the shards that the index names if there is one, else of every file.

    Raises CorruptCheckpoint (no file, a missing shard, a truncated or malformed file, a tensor twice or one that the
    index promises and no shard has), UnsupportedModel (a dtype outside DTYPE_BYTES).
    """
    index_path = Path(directory) / "model.safetensors.index.json"
    promised: dict[str, str] = {}
    if index_path.is_file():
        promised = decode_json_file(index_path, _Index).weight_map
        files = [_inside(index_path, shard) for shard in sorted(set(promised.values()))]
    else:
        files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise CorruptCheckpoint(f"{directory} holds no *.safetensors file")
    tensors: dict[str, SafetensorsTensor] = {}
    for file in files:
        for tensor in _read_head(file):
            if tensor.name in tensors:
                raise CorruptCheckpoint(f"tensor {tensor.name!r} is in both {tensors[tensor.name].path} and {file}")
            tensors[tensor.name] = tensor
    for name, shard in promised.items():
        if name not in tensors:
            raise CorruptCheckpoint(f"{index_path} promises tensor {name!r} in {shard}, which does not hold it")
    return tensors


def _inside(index_path: Path, shard: str) -> Path:
    file = index_path.parent / shard
    if Path(shard).name != shard or "\0" in shard or len(shard.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise CorruptCheckpoint(f"{index_path} names the shard {shard[:80]!r}, which is not a file name")
    if not file.is_file():
        raise CorruptCheckpoint(f"{index_path} names the shard {shard}, which is not there", advice="fetch it again")
    return file


def _read_head(file: Path) -> list[SafetensorsTensor]:
    size = os.path.getsize(file)
    with open(file, "rb") as stream:
        head_bytes = int.from_bytes(stream.read(8), "little")
        if size < 8 or head_bytes > min(size - 8, MAX_HEAD_BYTES):
            raise CorruptCheckpoint(
                f"{file} is truncated or not a safetensors file: {size:,} bytes, its head claims {head_bytes:,}"
            )
        raw = decode_json(stream.read(head_bytes), dict[str, msgspec.Raw], str(file))
    raw.pop("__metadata__", None)
    tensors = []
    for name, item in raw.items():
        entry = decode_json(bytes(item), _Entry, f"tensor {name!r} of {file}")
        if entry.dtype not in DTYPE_BYTES:
            raise UnsupportedModel(
                f"{file}: tensor {name!r} has dtype {entry.dtype}, which is not supported",
                advice=f"supported dtypes: {', '.join(DTYPE_BYTES)}",
            )
        start, end = entry.data_offsets
        if min(entry.shape, default=1) < 0 or end - start != prod(entry.shape) * DTYPE_BYTES[entry.dtype]:
            raise CorruptCheckpoint(f"{file}: tensor {name!r} of shape {list(entry.shape)} spans {end - start:,} bytes")
        if start < 0 or 8 + head_bytes + end > size:
            raise CorruptCheckpoint(
                f"{file} is truncated: tensor {name!r} ends at byte {8 + head_bytes + end:,}, the file at {size:,}",
                advice="fetch it again",
            )
        tensors.append(SafetensorsTensor(name, entry.dtype, entry.shape, str(file)))
    return tensors
