"""Attributes of a part of the scheduler into a message, and back.

A field of the message is named like the attribute, a leading underscore aside. Arrays are kept as bytes; the part that
they are put into says of which type they are, and how wide.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Container
from typing import TypeVar

import msgspec
import numpy as np

S = TypeVar("S", bound=msgspec.Struct)


def take(kind: type[S], part: object, **computed: object) -> S:
    """The message of this kind with the attributes of `part`, which it goes on sharing, and what is `computed`."""
    names = [name for name in kind.__struct_fields__ if name not in computed]
    return kind(**{name: _plain(getattr(part, _attribute(part, name))) for name in names}, **computed)


def put(saved: msgspec.Struct, part: object, without: Container[str] = ()) -> None:
    """Set the attributes of a new `part` to what was taken, all but `without`."""
    for name in saved.__struct_fields__:
        if name not in without:
            attribute = _attribute(part, name)
            setattr(part, attribute, _like(getattr(part, attribute), getattr(saved, name)))


def _attribute(part: object, name: str) -> str:
    return f"_{name}" if hasattr(part, f"_{name}") else name


def _plain(value: object) -> object:
    match value:
        case np.ndarray() | array():
            return value.tobytes()
        case deque():
            return list(value)
        case OrderedDict():
            return dict(value)
        case _:
            return value


def _like(old: object, value: object) -> object:
    """`value` as the type of `old`. The first dimension of an array may be another one."""
    match old:
        case np.ndarray():
            assert isinstance(value, bytes)
            array_there = np.frombuffer(value, old.dtype).reshape(-1, *old.shape[1:])
            if array_there.shape != old.shape:
                return array_there.copy()
            old[...] = array_there  # others may look into it
            return old
        case array():
            assert isinstance(value, bytes)
            return array(old.typecode, value)
        case deque():
            assert isinstance(value, list)
            return deque(value)
        case OrderedDict():
            assert isinstance(value, dict)
            return OrderedDict(value)
        case _:
            return value
