"""What the sampling kernels know of a row between steps, and where they leave what they find out about it in a step.

Parameters are one int32 matrix, 64 bytes a row: a kernel reads a row's in one access, and a new row comes by one copy.
A place of a step names its row by an int32 index; an index outside the matrix is padding, which costs nothing.

Kernels are compiled once for all numbers of places: what depends on these is not specialised on.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor


class Column(IntEnum):
    """Of the matrix of parameters; the floats are there bit by bit."""

    TEMPERATURE = 0
    """float32; 0 is arg max"""
    TOP_K = 1
    """0 keeps all"""
    TOP_P = 2
    """float32"""
    MIN_LOGIT = 3
    """float32: log(min_p)"""
    SEED_LOW = 4
    SEED_HIGH = 5
    CHOICE = 6
    INDEX_ORIGIN = 7
    """Position of the token that would be output number 0."""
    NUM_TOP = 8
    """Most likely tokens that are wanted; -1: no log-probabilities at all."""
    FLAGS = 9
    """Sum of `Flag`s."""
    REPETITION = 10
    """float32"""
    FREQUENCY = 11
    """float32"""
    PRESENCE = 12
    """float32"""
    NUM_BIAS = 13
    """Entries in the row's list of biases."""


NUM_COLUMNS = 16


_NEUTRAL = {Column.TOP_P: 1.0, Column.MIN_LOGIT: -np.inf, Column.NUM_TOP: -1, Column.REPETITION: 1.0}
_FLOATS = {
    Column.TEMPERATURE,
    Column.TOP_P,
    Column.MIN_LOGIT,
    Column.REPETITION,
    Column.FREQUENCY,
    Column.PRESENCE,
}


def encode_parameters(num_rows: int, columns: dict[Column, NDArray[np.generic]]) -> NDArray[np.int32]:
    """[num_rows, NUM_COLUMNS] of columns, [num_rows] each; a column that is not given does nothing, so rows of nothing
    are greedy."""
    encoded = np.zeros((num_rows, NUM_COLUMNS), np.int32)
    for column in Column:
        values = columns.get(column, np.array(_NEUTRAL.get(column, 0)))
        encoded[:, column] = values.astype(np.float32).view(np.int32) if column in _FLOATS else values.astype(np.int32)
    return encoded


def split_seeds(seeds: NDArray[np.uint64]) -> dict[Column, NDArray[np.int32]]:
    """The columns of 64-bit seeds, [m]."""
    halves = np.ascontiguousarray(seeds).view(np.int32).reshape(-1, 2)
    return {Column.SEED_LOW: halves[:, 0], Column.SEED_HIGH: halves[:, 1]}


class Flag(IntEnum):
    """Of a row."""

    PROCESSED_LOGPROBS = 1
    """Its log-probabilities are those of the distribution that is sampled from."""
    CHANGED = 2
    """It samples from its row of the changed logits."""
    PENALIZED = 4
    """Its tokens are counted."""


MAX_TOP = 32
"""Columns of the most likely tokens; 20 are the most that an OpenAI client may ask for."""
MAX_SPLITS = 128
"""Programs that share a row, at most."""
MAX_CANDIDATES = 4096
"""Logits around a border that one program holds at once."""
LOGPROB_CHUNK = 4096
"""Logits a program of `token_logprobs`: the same for every batch, so that sums are."""


class SamplingWorkspace:
    """Of steps of up to `max_rows` places over `vocab_size` tokens. Made once: kernels allocate nothing."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.max_rows, self.vocab_size = max_rows, vocab_size
        self.row_max = empty(max_rows)
        """The largest logit of each place, 0 where none is possible."""
        self.most_likely = empty(max_rows, dtype=torch.int32)
        self.thresholds = empty(max_rows)
        """The least processed logit that filters keep."""
        self.partial_values = empty(max_rows, MAX_SPLITS)
        self.partial_ids = empty(max_rows, MAX_SPLITS, dtype=torch.int32)
        self.arrived = torch.zeros(max_rows, dtype=torch.int32, device=device)
        """Programs of a row that are done; the last one sets it back to 0."""
        self.candidates = empty(max_rows, MAX_CANDIDATES, dtype=torch.int32)
        chunks = triton.next_power_of_2(triton.cdiv(vocab_size, LOGPROB_CHUNK))
        self.chunk_sums = empty(max_rows, chunks, 2)
        """(maximum, sum of exp(logit - maximum)) of each chunk"""
        self.chunk_values = empty(max_rows, chunks, MAX_TOP)
        self.chunk_ids = empty(max_rows, chunks, MAX_TOP, dtype=torch.int32)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in vars(self).values() if isinstance(tensor, Tensor))


def num_splits(num_rows: int, vocab_size: int, block: int, num_programs: int) -> int:
    """Programs a row, so that there are about `num_programs` of at least one block each."""
    return max(1, min(triton.cdiv(vocab_size, block), num_programs // num_rows, MAX_SPLITS))
