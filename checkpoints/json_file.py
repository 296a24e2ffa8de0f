"""A model's JSON files, decoded into structs."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import CorruptCheckpoint

Decoded = TypeVar("Decoded")


def decode_json_file(path: Path, kind: type[Decoded]) -> Decoded:
    """The file's content as `kind`. Raises CorruptCheckpoint, naming file and field, if it cannot be read as that."""
    try:
        return decode_json(path.read_bytes(), kind, str(path))
    except OSError as error:
        raise CorruptCheckpoint(f"cannot read {path}: {error.strerror}") from error


def decode_json(data: bytes, kind: type[Decoded], where: str) -> Decoded:
    """`data` as `kind`; `where` is named in the CorruptCheckpoint that it may raise."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{where} is malformed: {error}") from error
