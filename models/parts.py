"""Parts of a model while they are being read: stacks of rows, and what becomes of them when they are whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from ..kernels.cpu.quantized_rows import QuantizedRows

Sizes = Mapping[str, tuple[int, ...]]
"""Canonical name -> shape, top to bottom."""
RowsOfPiece = Tensor | QuantizedRows
Whole = TypeVar("Whole", covariant=True)


class Stack(Protocol[Whole]):
    """Rows of one or more tensors, one below the other."""

    firsts: Mapping[str, int]
    """Canonical name -> its first row here."""
    missing_rows: int

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


class TensorStack:
    """As one tensor."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> None:
        self.firsts, self.missing_rows = first_rows(sizes)
        self._size = (self.missing_rows, *next(iter(sizes.values()))[1:])
        self._dtype, self._device = dtype, device
        self._whole: Tensor | None = None

    def put(self, first_row: int, rows: RowsOfPiece) -> None:
        assert isinstance(rows, Tensor)
        if self._whole is None:
            self._whole = torch.empty(self._size, dtype=self._dtype, device=self._device)
        self._whole[first_row : first_row + len(rows)].copy_(rows)
        self.missing_rows -= len(rows)

    def take(self) -> Tensor:
        assert self._whole is not None and self.missing_rows == 0
        whole, self._whole = self._whole, None
        return whole


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


def hold_norm(offset: float) -> Callable[[Tensor], Tensor]:
    """[size] float32, `offset` added."""
    return lambda norm: norm + offset if offset else norm


def hold_head_norms(shape: ModelShape, offset: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Norms of query heads and of key heads, [head_dim] each -> one row a head: [num_heads + num_kv_heads, head_dim].

    What scores are divided by beside sqrt(head_dim) goes into the norm of queries.
    """
    scale = 1.0 if shape.query_divisor is None else (shape.head_dim / shape.query_divisor) ** 0.5

    def hold(query: Tensor, key: Tensor) -> Tensor:
        if offset:
            query, key = query + offset, key + offset
        query = query * scale if scale != 1.0 else query
        return torch.cat((query.expand(shape.num_heads, -1), key.expand(shape.num_kv_heads, -1)))

    return hold
