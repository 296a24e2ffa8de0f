"""JSON out and in: what a caller passes becomes a body, and what a server sends becomes a struct."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TypeVar

import msgspec

from ..errors import MalformedAnswer

T = TypeVar("T")


def encode_body(fields: Mapping[str, object]) -> bytes:
    """Mappings, sequences and arrays of any kind are taken. Raises TypeError for what is no JSON, ValueError for a
    number that is not finite, which would go out as null, and for text that is not Unicode."""
    for name, value in fields.items():
        if isinstance(value, bytes | bytearray | memoryview):  # would go out in base64, as if it were text
            raise TypeError(f"{name} is {type(value).__name__}; decode it to text")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}; JSON has finite numbers only")
    return msgspec.json.encode(dict(fields), enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | Set):
        return list(value)
    if hasattr(value, "tolist"):  # arrays and their numbers
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


def read_json(data: bytes, decoder: msgspec.json.Decoder[T], what: str) -> T:
    """Raises MalformedAnswer."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswer(f"{what} cannot be read: {error}") from error
