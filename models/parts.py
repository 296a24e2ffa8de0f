"""Parts of a model while they are being read: stacks of rows, and what becomes of them when they are whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.shape import ModelShape
from ..kernels.cpu.quantized_rows import Float32s, QuantizedRows

if TYPE_CHECKING:
    from torch import Tensor

Sizes = Mapping[str, tuple[int, ...]]
"""Canonical name -> shape, top to bottom."""
RowsOfPiece: TypeAlias = "Tensor | NDArray[np.generic] | QuantizedRows"
Whole = TypeVar("Whole", covariant=True)


class Stack(Protocol[Whole]):
    """Rows of one or more tensors, one below the other."""

    missing_rows: int

    @property
    def firsts(self) -> Mapping[str, int]:
        """Canonical name -> its first row here."""
        ...

    def put(self, first_row: int, rows: RowsOfPiece) -> None:
        """Take rows over."""
        ...

    def take(self) -> Whole:
        """Hand out the whole, so that it lives no longer than its taker wants."""
        ...


def first_rows(sizes: Sizes) -> tuple[dict[str, int], int]:
    """(canonical name -> its first row, number of rows) of tensors that are stacked."""
    firsts, num_rows = {}, 0
    for name, size in sizes.items():
        firsts[name] = num_rows
        num_rows += size[0]
    return firsts, num_rows


class ArrayStack:
    """As one array, float32."""

    def __init__(self, sizes: Sizes) -> None:
        self.firsts, self.missing_rows = first_rows(sizes)
        self._size = (self.missing_rows, *next(iter(sizes.values()))[1:])
        self._whole: Float32s | None = None

    def put(self, first_row: int, rows: RowsOfPiece) -> None:
        if self._whole is None:
            self._whole = np.empty(self._size, np.float32)
        self._whole[first_row : first_row + len(rows)] = as_float32s(rows)
        self.missing_rows -= len(rows)

    def take(self) -> Float32s:
        assert self.missing_rows == 0
        whole, self._whole = self._whole, None
        return np.empty(self._size, np.float32) if whole is None else whole


def as_float32s(rows: RowsOfPiece) -> Float32s:
    """The rows as an array."""
    if isinstance(rows, QuantizedRows):
        return rows.dequantize()
    if isinstance(rows, np.ndarray):
        return rows.astype(np.float32, copy=False)
    floats: Float32s = rows.float().numpy()
    return floats


class Part(Generic[Whole]):
    """One thing that the model holds, made of one or more stacks (a matrix and its bias)."""

    def __init__(self, name: str, stacks: Sequence[Stack[Any]], hold: Callable[..., Whole]) -> None:
        """`hold`: of the whole stacks, one argument each."""
        self.name, self.stacks, self._hold = name, stacks, hold

    @property
    def is_whole(self) -> bool:
        return all(stack.missing_rows == 0 for stack in self.stacks)

    def take(self) -> Whole:
        return self._hold(*(stack.take() for stack in self.stacks))


def with_offset(norm: Float32s, offset: float) -> Float32s:
    """[size]: what a norm multiplies by, of its stored weights."""
    return norm + np.float32(offset) if offset else norm


def norm_of_heads(shape: ModelShape, query: Float32s, key: Float32s) -> Float32s:
    """Norms of query heads and of key heads, [head_dim] each -> one row a head: [num_heads + num_kv_heads, head_dim].

    What scores are divided by beside sqrt(head_dim) goes into the norm of queries.
    """
    if shape.query_divisor is not None:
        query = query * np.float32((shape.head_dim / shape.query_divisor) ** 0.5)
    return np.repeat(np.stack((query, key)), (shape.num_heads, shape.num_kv_heads), axis=0)
