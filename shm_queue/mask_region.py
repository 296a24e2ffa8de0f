"""The bitmasks of constrained rows in shared memory: one writer, the grammar actor; the workers read.

A row of the worker's batch has `num_positions` slots, and the mask for position p of its request stands in slot
p % num_positions: the writer gets to the next round only when it has the tokens that were drawn with this one, so
nothing has to be given back. There is no bell and no count that a restart of either side could leave wrong. A slot says
itself whose mask it is and proves that it is whole: behind the mask stand epoch, run, base, position, and a weighted
sum of the mask's words and these, so a reader that sees part of a mask, in whatever order the stores arrive, sees no
mask.

The base is how many tokens of the request are known. A mask for a position behind the base takes drafts for granted,
those that the worker has told of that base, and holds for no other: when the base moves on, it is none.
"""

from __future__ import annotations

import os

import msgspec
import numpy as np
import numpy.typing as npt

from .segment import fix_size, map_memory

_HEADER_WORDS = 5
"""64-bit words behind a mask: epoch, run, base, position, sum."""

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class MaskLayout(msgspec.Struct, frozen=True):
    """`num_rows` of the batch, `num_positions` slots each, for a vocabulary of `vocab_size` tokens."""

    num_rows: int
    num_positions: int
    vocab_size: int

    @property
    def num_words(self) -> int:
        """32-bit words of a mask: ceil(vocab_size / 32). Bit i % 32 of word i // 32 allows token i."""
        return -(-self.vocab_size // 32)

    @property
    def slot_words(self) -> int:
        """64-bit words of a slot."""
        return -(-self.num_words // 2) + _HEADER_WORDS

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.num_positions * self.slot_words * 8


def create_mask_region(layout: MaskLayout) -> int:
    """A memfd of fixed size; its pages are taken as they are written. Raises OSError."""
    fd = os.memfd_create("callboard-masks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, layout.num_bytes)
        fix_size(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


class MaskRegion:
    """One side's view; `fd` stays the caller's."""

    def __init__(self, layout: MaskLayout, fd: int) -> None:
        """Raises ProtocolViolation if it has not the layout's size."""
        self.layout = layout
        self._memory = map_memory("masks", fd, layout.num_bytes, is_writable=True)
        shape = (layout.num_rows * layout.num_positions, layout.slot_words)
        self._slots: Int64s = np.frombuffer(self._memory, np.int64).reshape(shape)
        self._mask_words = layout.slot_words - _HEADER_WORDS
        self._weights = _weights(layout.slot_words - 1)
        self._staging: Int64s = np.zeros(layout.slot_words, np.int64)

    def write(self, row: int, epoch: int, run: int, base: int, position: int, mask: Int32s) -> None:
        """`mask`: int32 [num_words], for the token at `position` (absolute, `base` or behind it) of run `run` in `row`,
        of which `base` tokens are known."""
        staging = self._staging
        staging.view(np.int32)[: self.layout.num_words] = mask
        staging[self._mask_words : -1] = (epoch, run, base, position)
        staging[-1] = staging[:-1] @ self._weights
        self._slots[row * self.layout.num_positions + position % self.layout.num_positions] = staging

    def read(self, epoch: int, rows: Int32s, runs: Int64s, bases: Int32s, positions: Int32s, out: Int32s) -> Bools:
        """Copy the masks for n `positions` to out, int32 [n, num_words]; returns which of them are there."""
        copies = self._slots[rows * self.layout.num_positions + positions % self.layout.num_positions]
        headers = copies[:, self._mask_words : -1]
        is_there: Bools = (headers[:, 0] == epoch) & (headers[:, 1] == runs)
        is_there &= (headers[:, 2] == bases) & (headers[:, 3] == positions)
        is_there &= copies[:, :-1] @ self._weights == copies[:, -1]
        out[:] = copies.view(np.int32)[:, : self.layout.num_words]
        return is_there

    def close(self) -> None:
        """Twice is once."""
        self._slots = np.empty((0, self.layout.slot_words), np.int64)
        if not self._memory.closed:
            self._memory.close()


def _weights(num_words: int) -> Int64s:
    """Odd numbers without a pattern: a word that is another, or in another's place, changes the sum."""
    return np.random.Generator(np.random.PCG64(1)).integers(-(1 << 62), 1 << 62, num_words) * 2 + 1
