"""Arguments of compiled functions as 64-bit words, laid out as numba hands them to a function's own parts.

| value               | words                                                                              |
| ------------------- | ---------------------------------------------------------------------------------- |
| array               | 0, 0 (who owns its memory: nobody), size, bytes of an item, address, shape, strides |
| named tuple         | its fields' words                                                                  |
| integer, bool       | one                                                                                |
| float32             | its 32 bits                                                                        |
"""

from __future__ import annotations

import struct
from ctypes import addressof, c_char

import numpy as np


class Packed:
    """What a function is given again and again is packed once. Words are valid as long as this lives."""

    __slots__ = ("kinds", "value", "words")

    def __init__(self, value: object) -> None:
        kinds: list[str] = []
        words: list[int] = []
        _add(value, kinds, words)
        self.value = value
        self.kinds = "".join(kinds)
        """Which type numba sees in it."""
        self.words = struct.pack(f"{len(words)}q", *words)


def _add(value: object, kinds: list[str], words: list[int]) -> None:
    if isinstance(value, np.ndarray):
        flags = value.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        kinds.append(f"{layout}{value.ndim}{value.dtype.char}{'' if flags.writeable else 'r'},")
        if value.size and layout == "C" and flags.writeable:
            address = addressof(c_char.from_buffer(value))  # a fifth of the time that numpy takes to tell it
        else:
            address = value.ctypes.data
        words += (0, 0, value.size, value.itemsize, address, *value.shape, *value.strides)
    elif isinstance(value, tuple):
        kinds.append(f"{type(value).__name__}(")
        for field in value:
            _add(field, kinds, words)
        kinds.append(")")
    elif isinstance(value, bool):
        kinds.append("?")
        words.append(int(value))
    elif isinstance(value, int):
        kinds.append("q")
        words.append(value)
    elif isinstance(value, np.float32 | np.int64 | np.uint64):
        kinds.append(value.dtype.char)
        words.append(int(value.view(np.int32 if value.itemsize == 4 else np.int64)))
    else:
        raise TypeError(f"no argument of compiled code: {type(value).__name__}")
