"""Random weights for a model that has none: a function of each element's name and place, made as they are read.

Every element is a 16-bit word of a counter-based stream (Philox, keyed by the tensor's name), so that a tensor is the
same whatever pieces it is read in. Norms are ones and biases zeros; a matrix has variance 1 / columns, which keeps
activations and logits near unit size.
"""

from __future__ import annotations

import hashlib
from math import prod, sqrt

import numpy as np
import torch
from torch import Tensor

from .tensors import StoredTensor

_WORDS_PER_COUNT = 16
"""Elements of one step of the counter: four 64-bit numbers."""
_BYTES_PER_ELEMENT = 2


def open_dummy(sizes: dict[str, tuple[int, ...]]) -> dict[str, StoredTensor]:
    """name -> shape of every tensor of a model, as tensors that are made when they are read."""
    return {name: _dummy_tensor(name, size) for name, size in sizes.items()}


def _dummy_tensor(name: str, size: tuple[int, ...]) -> StoredTensor:
    row_elements = prod(size[1:])

    def read_rows(first: int, last: int) -> Tensor:
        shape = (last - first, *size[1:])
        if len(size) == 1:
            return torch.full(shape, 1.0 if name.endswith("norm.weight") else 0.0)
        values = _uniform(name, first * row_elements, (last - first) * row_elements)
        return values.mul_(sqrt(12 / size[-1])).view(shape)

    return StoredTensor(name, size, _BYTES_PER_ELEMENT * prod(size), 1, read_rows)


def _uniform(name: str, first: int, count: int) -> Tensor:
    """Elements `first` to `first + count` of the stream called `name`: float32 [count], even over (-0.5, 0.5)."""
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
    skipped = first % _WORDS_PER_COUNT
    num_counts = -(-(skipped + count) // _WORDS_PER_COUNT)
    stream = np.random.Philox(key=key).advance(first // _WORDS_PER_COUNT)
    words = stream.random_raw(4 * num_counts).view(np.int16)[skipped : skipped + count]
    return torch.from_numpy(words).float().add_(0.5).mul_(2.0**-16)
