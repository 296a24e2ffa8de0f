"""The bitmasks of constrained rows, read when a step samples.

A mask is there when the grammar has taken the token before it, which an earlier step sampled, or which is a draft that
was told before; a row whose mask is not there yields no token in that step, behind drafts none from there on, and waits
for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolViolation
from ..kernels.bitmask_words import last_word, num_words
from .input_batch import InputBatch, Int32s, Int64s

Bools = NDArray[np.bool_]


class MaskSource(Protocol):
    """Where masks come from: `shm_queue.MaskRegion`."""

    def read(self, epoch: int, rows: Int32s, runs: Int64s, bases: Int32s, positions: Int32s, out: Int32s) -> Bools:
        """Copy the masks for the tokens at `positions`, [n], to out, int32 [n, num_words]; returns which are there.
        bases: [n], how many tokens of each row are known; what stands behind them are drafts."""
        ...


class UnreadMasks:
    """The masks of a rank that does not sample: all are there at once, and allow everything."""

    def read(self, epoch: int, rows: Int32s, runs: Int64s, bases: Int32s, positions: Int32s, out: Int32s) -> Bools:
        out[:] = -1
        return np.ones(rows.size, np.bool_)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Of the k rows of a step that sample; m of them have masks."""

    indexes: Int64s
    """[m], into the k rows, in any order."""
    words: Int32s
    """[m, num_words]; each allows some token. Valid until the next step's masks are read; whoever applies them may take
    more tokens out."""
    is_late: Bools
    """[k]: constrained rows without a mask."""


class ArrivingMasks:
    """The masks of one step, as they come in."""

    def __init__(self, source: MaskSource, epoch: int, runs: Int64s, words: Int32s, last: np.int32) -> None:
        """runs: [k], of the rows that sample; words: where the masks go to; last: the meaningful bits of a last one."""
        self._source, self._epoch, self._runs, self._words, self._last = source, epoch, runs, words, last
        self._indexes: Int64s = np.empty(0, np.int64)
        """Of those that are there, in their order in `_words`."""
        self._missing: Int64s = np.empty(0, np.int64)
        self._rows: Int32s = np.empty(0, np.int32)
        self._positions: Int32s = np.empty(0, np.int32)
        self._bases: Int32s = np.empty(0, np.int32)

    def want(self, rows: Int32s, bases: Int32s, positions: Int32s, constrained: Int64s) -> None:
        """rows, bases, positions: [k]; constrained: indexes into them."""
        self._rows, self._bases, self._positions, self._missing = rows, bases, positions, constrained

    def read(self) -> bool:
        """Take what is there by now; whether that is all. A mask that allows no token is as good as none."""
        missing, start = self._missing, self._indexes.size
        if missing.size:
            out = self._words[start : start + missing.size]
            rows, runs, positions = self._rows[missing], self._runs[missing], self._positions[missing]
            is_there = self._source.read(self._epoch, rows, runs, self._bases[missing], positions, out)
            out[:, -1] &= self._last
            is_there = is_there & out.any(axis=1)
            if not is_there.all():
                there = out[is_there]
                out[: len(there)] = there
            self._indexes = np.concatenate((self._indexes, missing[is_there]))
            self._missing = missing[~is_there]
        return not self._missing.size

    def take(self) -> TokenMasks:
        """Those that are there now; rows whose masks are not are late."""
        self.read()
        is_late = np.zeros(self._runs.size, np.bool_)
        is_late[self._missing] = True
        return TokenMasks(self._indexes, self._words[: self._indexes.size], is_late)


class MaskReader:
    """Reads for the rows of one persistent batch, one step after the other."""

    def __init__(self, batch: InputBatch, source: MaskSource | None, vocab_size: int) -> None:
        """source None: no row may be constrained."""
        self._batch, self._source = batch, source
        num_rows = 0 if source is None else batch.max_num_seqs
        self._words: Int32s = np.zeros((num_rows, num_words(vocab_size)), np.int32)
        self._last = last_word(vocab_size)

    @property
    def has_source(self) -> bool:
        """Whether there may be constrained rows."""
        return self._source is not None

    @property
    def num_bytes(self) -> int:
        """Of the masks of a step, at most."""
        return self._words.nbytes

    def begin(
        self, epoch: int, rows: Int32s, runs: Int64s, positions: Int32s, counts: Int32s | None = None
    ) -> ArrivingMasks | None:
        """For the rows that sample in a step, [k], which the batch has; None if none of them is constrained. counts:
        how often each row samples, in sum k; None: once. Raises ProtocolViolation if one is constrained and there is
        nothing to read from."""
        if not self._batch.has_constrained_rows:
            return None
        constrained = np.flatnonzero(self._batch.is_constrained[rows])
        if not constrained.size:
            return None
        if self._source is None:
            i = constrained[0]
            raise ProtocolViolation(f"row {rows[i]} (run {runs[i]}) is constrained; this worker was given no masks")
        if constrained.size > len(self._words):  # a row with drafts has several
            self._words = np.zeros((constrained.size, self._words.shape[1]), np.int32)
        bases = positions if counts is None else np.repeat(positions[np.cumsum(counts) - counts], counts)
        arriving = ArrivingMasks(self._source, epoch, runs, self._words, self._last)
        arriving.want(rows, bases, positions, constrained)
        return arriving

    def allowing_all(self, num_rows: int) -> TokenMasks:
        """Masks that change nothing, to try what applies them."""
        words = np.full((num_rows, self._words.shape[1]), -1, np.int32)
        words[:, -1] &= self._last
        return TokenMasks(np.arange(num_rows), words, np.zeros(num_rows, np.bool_))
