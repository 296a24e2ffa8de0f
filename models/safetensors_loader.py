"""Tensors of a Hugging Face directory: `model.safetensors`, or shards listed in `model.safetensors.index.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CorruptCheckpoint, UnsupportedModel
from .tensors import StoredTensor

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_BUFFER_SUFFIXES = (".rotary_emb.inv_freq",)
"""Tensors that old checkpoints store and that follow from the configuration."""


class _Index(msgspec.Struct, frozen=True):
    """model.safetensors.index.json; other fields are ignored."""

    weight_map: dict[str, str]


def open_safetensors(path: str) -> dict[str, StoredTensor]:
    """Every tensor of the directory `path` by name; nothing but headers is read.

    Raises CorruptCheckpoint (no such file, truncated, not where the index says) and UnsupportedModel (dtype).
    """
    stored: dict[str, StoredTensor] = {}
    for file_path, names in _files(Path(path)):
        try:
            handle = safe_open(file_path, framework="pt", device="cpu")
            held = set(handle.keys())  # type: ignore[no-untyped-call]
        except (SafetensorError, OSError) as error:
            raise CorruptCheckpoint(f"{file_path}: {error}", advice="fetch the file again") from error
        for name in sorted(held if names is None else names):
            if name not in held:
                raise CorruptCheckpoint(f"{file_path} has no tensor {name}, but the index names it")
            if not name.endswith(_BUFFER_SUFFIXES):
                stored[name] = _stored_tensor(handle, file_path, name)
    return stored


def _files(directory: Path) -> list[tuple[Path, list[str] | None]]:
    """The files to open, each with the names to take from it (None: all)."""
    index_path = directory / "model.safetensors.index.json"
    if not index_path.is_file():
        return [(directory / "model.safetensors", None)]
    try:
        index = msgspec.json.decode(index_path.read_bytes(), type=_Index)
    except msgspec.DecodeError as error:
        raise CorruptCheckpoint(f"{index_path}: {error}") from error
    names_of: dict[str, list[str]] = {}
    for name, file_name in index.weight_map.items():
        if Path(file_name).name != file_name:
            raise CorruptCheckpoint(f"{index_path}: {file_name!r} is not the name of a file in the same directory")
        names_of.setdefault(file_name, []).append(name)
    return [(directory / file_name, names) for file_name, names in names_of.items()]


def _stored_tensor(handle: safe_open, file_path: Path, name: str) -> StoredTensor:
    view = handle.get_slice(name)  # type: ignore[no-untyped-call]
    shape, kind = tuple(view.get_shape()), view.get_dtype()
    if kind not in _ITEM_BYTES:
        raise UnsupportedModel(
            f"{file_path}: {name} is stored as {kind} (supported: {', '.join(sorted(_ITEM_BYTES))})",
            advice="use a checkpoint that is not quantized",
        )
    num_bytes = _ITEM_BYTES[kind]
    for size in shape:
        num_bytes *= size

    def read_rows(first: int, last: int) -> Tensor:
        rows: Tensor = view[first:last]
        return rows

    return StoredTensor(name, shape, num_bytes, 1, read_rows)
