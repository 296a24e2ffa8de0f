"""The directory of a GGUF file: which tensors it has, and where.

Read by this module and not by `gguf.GGUFReader`, which makes an array of every string of the vocabulary (3.6 s for
49,152 tokens against 0.05 s) and takes a cut-off file for a shorter one.
Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ..errors import CorruptCheckpoint, UnsupportedModel

_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4


class GGUFTensor(NamedTuple):
    """One entry of the directory."""

    name: str
    shape: tuple[int, ...]
    """Rows first (the file lists the fastest axis first)."""
    kind: GGMLQuantizationType
    offset: int
    """Of its first byte, from the start of the file."""
    num_bytes: int


class GGUFFile:
    """A memory-mapped GGUF file; `tensors` by the file's own names."""

    def __init__(self, path: str) -> None:
        """Raises CorruptCheckpoint (not GGUF, cut off) and UnsupportedModel (version, a tensor type of the future)."""
        self.path = path
        try:
            # mode "c": pages that nobody writes to stay the file's, and torch takes the arrays without a warning;
            # asarray: slicing a memmap costs several times as much as slicing the plain array over it
            self._bytes: npt.NDArray[np.uint8] = np.asarray(np.memmap(path, dtype=np.uint8, mode="c"))
        except (OSError, ValueError) as error:
            raise CorruptCheckpoint(f"{path} cannot be mapped: {error}") from error
        try:
            self.tensors = _Directory(self._bytes.data, path).read()
        except (struct.error, UnicodeDecodeError, IndexError, OverflowError, RecursionError) as error:
            raise CorruptCheckpoint(
                f"{path} is cut off or damaged in its header ({error})", advice="fetch the file again"
            ) from error

    def bytes_of(self, tensor: GGUFTensor, first_row: int, last_row: int) -> npt.NDArray[np.uint8]:
        """Rows first_row..last_row - 1 as stored: uint8 [num_rows, row_bytes], a view of the file."""
        row_bytes = tensor.num_bytes // tensor.shape[0]
        start = tensor.offset + first_row * row_bytes
        return self._bytes[start : start + (last_row - first_row) * row_bytes].reshape(last_row - first_row, row_bytes)


class _Directory:
    """A cursor over the header."""

    def __init__(self, header: memoryview, path: str) -> None:
        self.header, self.path, self.at = header, path, 0
        self.alignment = 32

    def read(self) -> dict[str, GGUFTensor]:
        if bytes(self.header[:4]) != b"GGUF":
            raise CorruptCheckpoint(f"{self.path} does not begin with the four letters of a GGUF file")
        self.at = 4
        version = self.take("<I")
        if version not in _VERSIONS:
            raise UnsupportedModel(f"{self.path} is GGUF version {version} (supported: 2, 3, little-endian)")
        num_tensors, num_fields = self.take("<Q"), self.take("<Q")
        for _ in range(num_fields):
            key, kind = self.take_string(), self.take("<I")
            if key == b"general.alignment" and kind == _UINT32:
                self.alignment = max(self.take("<I"), 1)
            else:
                self.skip_value(kind)
        entries = [self.take_entry() for _ in range(num_tensors)]
        data_start = -(-self.at // self.alignment) * self.alignment
        tensors = {}
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise CorruptCheckpoint(f"{self.path} lists {name} twice")
            tensors[name] = self.placed(name, shape, kind, data_start + offset)
        return tensors

    def take(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self.header, self.at)
        self.at += struct.calcsize(layout)
        return int(value)

    def take_string(self) -> bytes:
        length = self.take("<Q")
        if length > len(self.header) - self.at:
            raise IndexError(f"a string of {length:,} bytes at byte {self.at:,}")
        self.at += length
        return bytes(self.header[self.at - length : self.at])

    def skip_value(self, kind: int) -> None:
        if kind in _SCALAR_BYTES:
            self.at += _SCALAR_BYTES[kind]
        elif kind == _STRING:
            self.skip_strings(1)
        elif kind == _ARRAY:
            item_kind, count = self.take("<I"), self.take("<Q")
            if item_kind in _SCALAR_BYTES:
                self.at += _SCALAR_BYTES[item_kind] * count
            elif item_kind == _STRING:
                self.skip_strings(count)
            else:
                for _ in range(count):
                    self.skip_value(item_kind)
        else:
            raise IndexError(f"a value of unknown type {kind} at byte {self.at:,}")

    def skip_strings(self, count: int) -> None:
        header, at, unpack = self.header, self.at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + unpack(header, at)[0]
        self.at = at

    def take_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.take_string().decode()
        num_dimensions = self.take("<I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise IndexError(f"{name} has {num_dimensions} dimensions")
        sizes = [self.take("<Q") for _ in range(num_dimensions)]
        return name, tuple(reversed(sizes)), self.take("<I"), self.take("<Q")

    def placed(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GGUFTensor:
        try:
            ggml_type = GGMLQuantizationType(kind)
        except ValueError:
            raise UnsupportedModel(f"{self.path}: {name} has the unknown tensor type {kind}") from None
        block_elements, block_bytes = GGML_QUANT_SIZES[ggml_type]
        if 0 in shape or shape[-1] % block_elements:
            raise CorruptCheckpoint(
                f"{self.path}: {name} of shape {list(shape)} is no whole number of {ggml_type.name} blocks"
            )
        num_bytes = math.prod(shape) // block_elements * block_bytes
        if offset + num_bytes > len(self.header):
            raise CorruptCheckpoint(
                f"{self.path} is cut off: {name} ends at byte {offset + num_bytes:,},"
                f" the file has {len(self.header):,}",
                advice="fetch the file again",
            )
        return GGUFTensor(name, shape, ggml_type, offset, num_bytes)
