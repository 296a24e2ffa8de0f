"""The head of a GGUF file: its metadata and its tensor directory, read in one bounded pass.

The `gguf` package's reader makes two numpy arrays for each string, which takes seconds for a vocabulary, and follows
any count that the file states. Here a count can never cost more than the file is long: every read is checked against
the file's end first. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

import msgspec
import numpy as np

from ..errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel
from .gguf_types import TENSOR_TYPES, type_name

GGUFScalar = int | float | bool | str
GGUFValue = GGUFScalar | list[int] | list[float] | list[bool] | list[str]

MAX_METADATA_ENTRIES = 65_536
MAX_TENSORS = 1_048_576
MAX_ARRAY_LENGTH = 1 << 24
MAX_DIMENSIONS = 4

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALARS: dict[int, struct.Struct] = {number: struct.Struct("<" + code) for number, code in _CODES.items()}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_UPPER_BYTES = bytes(7)
"""Of the length of a short string."""
_WINDOW_BYTES = 1 << 18


class GGUFTensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the tensor directory."""

    name: str
    dims: tuple[int, ...]
    """Elements, innermost (contiguous) first, as in the file: a `[out, in]` matrix has dims (in, out)."""
    type: str
    """A name in TENSOR_TYPES."""
    offset: int
    """First byte, from the beginning of the file."""
    num_bytes: int


class GGUFFile(msgspec.Struct, frozen=True):
    """What the head of a GGUF file says. A list's items are of one type, for the file states it once."""

    path: str
    metadata: Mapping[str, GGUFValue]
    tensors: Mapping[str, GGUFTensor]

    def text(self, key: str) -> str | None:
        """The string at `key`, None if absent. Raises CorruptCheckpoint if it is of another type."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(key, value, "a string")

    def integer(self, key: str) -> int | None:
        """The integer at `key`, None if absent. Raises CorruptCheckpoint if it is of another type."""
        value = self.metadata.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._wrong(key, value, "an integer")

    def number(self, key: str) -> float | None:
        """The number at `key`, None if absent. Raises CorruptCheckpoint if it is of another type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self._wrong(key, value, "a number")

    def flag(self, key: str) -> bool | None:
        """The bool at `key`, None if absent. Raises CorruptCheckpoint if it is of another type."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(key, value, "a bool")

    def texts(self, key: str) -> list[str] | None:
        """The list of strings at `key`, None if absent. Raises CorruptCheckpoint if it is of another type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, list) and isinstance(next(iter(value), ""), str):
            return cast("list[str]", value)
        raise self._wrong(key, value, "a list of strings")

    def integers(self, key: str) -> list[int] | None:
        """The list of integers at `key`, None if absent. Raises CorruptCheckpoint if it is of another type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, list) and type(next(iter(value), 0)) is int:
            return cast("list[int]", value)
        raise self._wrong(key, value, "a list of integers")

    def numbers(self, key: str) -> list[float] | None:
        """The list of numbers at `key`, None if absent. Raises CorruptCheckpoint if it is of another type."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, list) and all(type(item) in (int, float) for item in value):
            return [float(item) for item in value if isinstance(item, int | float)]
        raise self._wrong(key, value, "a list of numbers")

    def _wrong(self, key: str, value: GGUFValue, wanted: str) -> CorruptCheckpoint:
        shown = f"a list of {len(value)} items" if isinstance(value, list) else repr(value)[:80]
        return CorruptCheckpoint(f"{self.path}: metadata {key} must be {wanted}, got {shown}")


def read_gguf(path: str) -> GGUFFile:
    """The head of the file at `path`, cached by path, size and time of change.

    Raises ModelNotFound (no such file), CorruptCheckpoint (not a GGUF file, truncated, nonsense counts),
    UnsupportedModel (version, byte order, a tensor type outside TENSOR_TYPES).
    """
    try:
        stat = os.stat(path)
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}") from error
    return _read_cached(os.fspath(Path(path)), stat.st_size, stat.st_mtime_ns)


def gguf_metadata(path: str) -> Mapping[str, GGUFValue]:
    """The metadata of the file at `path`; errors as in `read_gguf`."""
    return read_gguf(path).metadata


@functools.lru_cache(maxsize=4)
def _read_cached(path: str, num_bytes: int, _mtime_ns: int) -> GGUFFile:
    if num_bytes < 24:
        raise CorruptCheckpoint(f"{path} has {num_bytes} bytes, too few for a GGUF file")
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Head(path, view).read()
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}") from error


class _Head:
    """A cursor over the file that never reads past its end."""

    def __init__(self, path: str, view: mmap.mmap) -> None:
        self.path, self.view, self.size, self.at = path, view, len(view), 0

    def read(self) -> GGUFFile:
        if self.view[:4] != b"GGUF":
            raise CorruptCheckpoint(f"{self.path} is not a GGUF file: it begins with {self.view[:4]!r}, not b'GGUF'")
        self.at = 4
        version = self.scalar(_U32, "version")
        if version not in (2, 3):
            is_swapped = version & 0xFFFF == 0 and version != 0
            what = "in big-endian byte order" if is_swapped else f"of GGUF version {version}"
            raise UnsupportedModel(f"{self.path} is {what}; supported: versions 2 and 3, little-endian")
        num_tensors = self.count("tensor count", MAX_TENSORS)
        num_entries = self.count("metadata count", MAX_METADATA_ENTRIES)
        metadata = self.entries(num_entries)
        tensors = self.directory(num_tensors, metadata)
        return GGUFFile(self.path, MappingProxyType(metadata), MappingProxyType(tensors))

    def take(self, num_bytes: int, what: str) -> int:
        """Moves the cursor over `num_bytes` and returns where they begin."""
        start = self.at
        if num_bytes > self.size - start:
            raise CorruptCheckpoint(
                f"{self.path} is truncated or malformed: {what} at byte {start:,} needs {num_bytes:,} bytes, "
                f"the file ends at {self.size:,}"
            )
        self.at = start + num_bytes
        return start

    def scalar(self, kind: struct.Struct, what: str) -> int:
        value: int = kind.unpack_from(self.view, self.take(kind.size, what))[0]
        return value

    def count(self, what: str, limit: int) -> int:
        value = self.scalar(_U64, what)
        if value > limit:
            raise CorruptCheckpoint(f"{self.path}: {what} is {value:,}, the limit is {limit:,}; the file is malformed")
        return value

    def string(self, what: str) -> str:
        length = self.scalar(_U64, what)
        start = self.take(length, what)
        try:
            return self.view[start : self.at].decode()
        except UnicodeDecodeError as error:
            raise CorruptCheckpoint(f"{self.path}: {what} at byte {start:,} is not UTF-8") from error

    def strings(self, length: int, what: str) -> list[str]:
        """`length` strings: a vocabulary has hundreds of thousands."""
        items: list[str] = []
        while len(items) < length:
            self.short_strings(items, length)
            if len(items) < length:
                items.append(self.string(what))  # a longer one, or one that is wrong: it says how
        return items

    def short_strings(self, items: list[str], length: int) -> None:
        """Those of less than 256 bytes that come next, up to `length` items; it may stop at any. Nothing is called for
        each but what decodes it."""
        window = self.view[self.at : self.at + _WINDOW_BYTES]
        at = 0
        try:
            for _ in range(length - len(items)):
                start = at + 8
                if window[at + 1 : start] != _UPPER_BYTES or start + window[at] > len(window):
                    break
                items.append(window[start : start + window[at]].decode())
                at = start + window[at]
        except UnicodeDecodeError:
            pass
        self.at += at

    def entries(self, num_entries: int) -> dict[str, GGUFValue]:
        metadata: dict[str, GGUFValue] = {}
        for index in range(num_entries):
            key = self.string(f"metadata key {index}")
            if key in metadata:
                raise CorruptCheckpoint(f"{self.path}: metadata {key!r} stands there twice")
            metadata[key] = self.value(self.scalar(_U32, f"type of {key!r}"), f"metadata {key!r}")
        return metadata

    def value(self, kind: int, what: str) -> GGUFValue:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        if kind not in _SCALARS:
            raise CorruptCheckpoint(f"{self.path}: {what} has the unknown type {kind}")
        return self.scalar(_SCALARS[kind], what)

    def array(self, what: str) -> list[int] | list[float] | list[bool] | list[str]:
        kind = self.scalar(_U32, what)
        length = self.count(f"length of {what}", MAX_ARRAY_LENGTH)
        if kind == _STRING:
            return self.strings(length, what)
        if kind not in _SCALARS:
            raise CorruptCheckpoint(f"{self.path}: {what} is a list of the unknown or nested type {kind}")
        scalar = _SCALARS[kind]
        start = self.take(length * scalar.size, what)
        items = np.frombuffer(self.view[start : self.at], dtype=np.dtype(scalar.format))
        values: list[int] | list[float] | list[bool] = items.tolist()
        return values

    def directory(self, num_tensors: int, metadata: Mapping[str, GGUFValue]) -> dict[str, GGUFTensor]:
        rows = [self.tensor_row(index) for index in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise CorruptCheckpoint(f"{self.path}: general.alignment is {alignment!r}, not a power of two")
        data_start = -(-self.at // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, dims, type_number, offset in rows:
            if name in tensors:
                raise CorruptCheckpoint(f"{self.path}: tensor {name!r} stands there twice")
            tensors[name] = self.tensor(name, dims, type_number, data_start + offset)
        return tensors

    def tensor_row(self, index: int) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string(f"name of tensor {index}")
        what = f"tensor {name!r}"
        num_dims = self.scalar(_U32, what)
        if not 1 <= num_dims <= MAX_DIMENSIONS:
            raise CorruptCheckpoint(f"{self.path}: {what} has {num_dims} dimensions, allowed are 1 to {MAX_DIMENSIONS}")
        dims = tuple(self.scalar(_U64, what) for _ in range(num_dims))
        return name, dims, self.scalar(_U32, what), self.scalar(_U64, what)

    def tensor(self, name: str, dims: tuple[int, ...], type_number: int, offset: int) -> GGUFTensor:
        if type_number not in TENSOR_TYPES:
            allowed = ", ".join(sorted(kind[0] for kind in TENSOR_TYPES.values()))
            raise UnsupportedModel(
                f"{self.path}: tensor {name!r} has type {type_name(type_number)}, which is not supported",
                advice=f"supported types: {allowed}",
            )
        name_of_type, block_elements, block_bytes = TENSOR_TYPES[type_number]
        if 0 in dims or dims[0] % block_elements:
            raise CorruptCheckpoint(
                f"{self.path}: tensor {name!r} of type {name_of_type} has dimensions {list(dims)}; "
                f"the first must be a positive multiple of {block_elements}"
            )
        num_elements = 1
        for dim in dims:
            num_elements *= dim
        num_bytes = num_elements // block_elements * block_bytes
        if offset + num_bytes > self.size:
            raise CorruptCheckpoint(
                f"{self.path} is truncated or malformed: tensor {name!r} ends at byte {offset + num_bytes:,}, "
                f"the file at {self.size:,}",
                advice="fetch it again",
            )
        return GGUFTensor(name, dims, name_of_type, offset, num_bytes)
