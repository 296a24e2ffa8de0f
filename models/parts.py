"""Parts of a model while they are being read: stacks of rows, and what becomes of them when they are whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from .linear import Linear, hold_linear

Hold = Callable[[list[Tensor]], Tensor | Linear]
"""The whole stacks of a part -> how the model holds it."""


class Rows:
    """Rows of one or more tensors, one below the other."""

    def __init__(self, sizes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> None:
        """sizes: canonical name -> shape of the tensors, top to bottom."""
        self.firsts: dict[str, int] = {}
        """Canonical name -> its first row here."""
        num_rows = 0
        for name, size in sizes.items():
            self.firsts[name] = num_rows
            num_rows += size[0]
        self._size = (num_rows, *next(iter(sizes.values()))[1:])
        self._dtype, self._device = dtype, device
        self._whole: Tensor | None = None
        self.missing_rows = num_rows

    def put(self, first_row: int, rows: Tensor) -> None:
        """Copy rows in."""
        if self._whole is None:
            self._whole = torch.empty(self._size, dtype=self._dtype, device=self._device)
        self._whole[first_row : first_row + len(rows)].copy_(rows)
        self.missing_rows -= len(rows)

    def take(self) -> Tensor:
        """Hand the tensor over, so that it lives no longer than its taker wants."""
        assert self._whole is not None and self.missing_rows == 0
        whole, self._whole = self._whole, None
        return whole


class Part:
    """One thing that the model holds, made of one or more stacks (a matrix and its bias)."""

    def __init__(self, name: str, rows: list[Rows], hold: Hold) -> None:
        self.name, self.rows, self._hold = name, rows, hold

    @property
    def is_whole(self) -> bool:
        return all(rows.missing_rows == 0 for rows in self.rows)

    def take(self) -> Tensor | Linear:
        return self._hold([rows.take() for rows in self.rows])


def hold_embedding(stacks: list[Tensor]) -> Tensor:
    """[vocab_size, hidden_size] as it is."""
    return stacks[0]


def hold_matrix(stacks: list[Tensor]) -> Linear:
    """A matrix, and its bias if there is one."""
    return hold_linear(*stacks)


def hold_norm(offset: float) -> Hold:
    """[size] float32, `offset` added."""
    return lambda stacks: stacks[0] + offset if offset else stacks[0]


def hold_head_norms(shape: ModelShape, offset: float) -> Hold:
    """Norms of query heads and of key heads, [head_dim] each -> one row a head: [num_heads + num_kv_heads, head_dim].

    What scores are divided by beside sqrt(head_dim) goes into the norm of queries.
    """
    scale = 1.0 if shape.query_divisor is None else (shape.head_dim / shape.query_divisor) ** 0.5

    def hold(stacks: list[Tensor]) -> Tensor:
        query, key = (stack + offset if offset else stack for stack in stacks)
        query = query * scale if scale != 1.0 else query
        return torch.cat((query.expand(shape.num_heads, -1), key.expand(shape.num_kv_heads, -1)))

    return hold
