"""Masks as a grammar writes them, in real shared memory, and rows that decode under them."""

from __future__ import annotations

import os

import numpy as np

from callboard.shm_queue.mask_region import MaskLayout, MaskRegion, create_mask_region
from callboard.tests.execution.test_runner_sampling import Answers

EPOCH = 3
"""Of the plan maker."""


def words_of(allowed, vocab_size):
    """int32 [ceil(vocab_size / 32)], with ones behind the vocabulary, which mean nothing."""
    bits = np.ones(-(-vocab_size // 32) * 32, np.uint8)
    bits[:vocab_size] = np.isin(np.arange(vocab_size), list(allowed))
    return np.packbits(bits, bitorder="little").view(np.int32)


class MaskBoard:
    """A region of 8 rows; counts what is read of it."""

    def __init__(self, vocab_size):
        layout = MaskLayout(8, 4, vocab_size)
        fd = create_mask_region(layout)
        self.region, self.vocab_size, self.num_reads = MaskRegion(layout, fd), vocab_size, 0
        os.close(fd)

    def write(self, row, run, position, allowed):
        self.region.write(row, EPOCH, run, position, position, words_of(allowed, self.vocab_size))

    def read(self, epoch, rows, runs, bases, positions, out):
        self.num_reads += 1
        return self.region.read(epoch, rows, runs, bases, positions, out)


class MaskedAnswers(Answers):
    """`allowed_at(row, position)`: the tokens of a constrained row's mask, None if it is late."""

    def __init__(self, runner, maker, board):
        super().__init__(runner, maker)
        self.board, self.masks = board, {}

    def place(self, row, prompt, output=(), *, allowed_at=None, **sampling):
        super().place(row, prompt, output, is_constrained=allowed_at is not None, **sampling)
        self.masks[row] = allowed_at

    def run(self, num_steps, computed=None):
        for _ in range(num_steps):
            for row, known in self.known.items():
                allowed = None if self.masks[row] is None else self.masks[row](row, len(known))
                if allowed is not None:
                    self.board.write(row, self.maker.rows[row].run, len(known), allowed)
            computed = super().run(1, computed)
        return computed
