"""What suffix decoding keeps, as arrays that compiled code reads and writes (`kernels.cpu.suffix_drafts`).

An n-gram's occurrences are a chain from the latest to the oldest; its head is in the bucket that the n-gram hashes to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .proposer import Int32s

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


class OwnTokens(NamedTuple):
    """Chains over the tokens of each row, which themselves stay in the batch's array. Pages that no row has needed are
    no memory."""

    heads: Int64s
    """[max_num_seqs, buckets]: generation in the upper half, position + 1 in the lower one."""
    previous: Int32s
    """[max_num_seqs, max_model_len + 1]: position + 1 of the occurrence before this one, 0 if there is none."""
    generations: Int64s
    """[max_num_seqs]: entries of other generations do not count, so nothing has to be cleared."""
    masks: Int64s
    """[max_num_seqs]: buckets in use - 1, -1 for a row that was forgotten; one that outgrows them is chained anew, as
    another generation, into twice as many."""
    num_taken: Int32s
    """[max_num_seqs]: tokens of the row that are chained."""


class SharedTokens(NamedTuple):
    """Output of recent requests, live and finished, in a ring: a new token takes the place of the oldest. Tokens of
    several requests lie between each other; each knows the one before and the one after it. A token is named by its
    serial number, from 1, whose last bits are its slot; 0 is none, and so is a serial that was overwritten."""

    ring: Int64s
    """[capacity, 5], one line of a cache or two for each: the token, its request's key, the token before it, the token
    after it, the latest one before it with the same n-gram, or at least in the same bucket."""
    heads: Int64s
    """[buckets]: serials."""
    next_serial: Int64s
    """[1]"""
    row_keys: Int64s
    """[max_num_seqs]: 0 for a row that shares with nobody."""
    row_starts: Int32s
    """[max_num_seqs]: where its output begins."""
    row_taken: Int32s
    """[max_num_seqs]: tokens of the row that are here, or in front of its output."""
    row_last: Int64s
    """[max_num_seqs]: serial of its latest token, 0 if there is none."""


class Workspace(NamedTuple):
    """Of one row at a time."""

    factor: Float64s
    """[2]: tokens drafted for each token matched; the lowest probability of a draft."""
    places: Int64s
    """[max_occurrences]: behind each occurrence; a position of the row or a serial."""
    matched: Int32s
    """[max_occurrences]: how far each matches the row's end."""
    by_matched: Int32s
    """[max_match + 1]: how many match so far."""
    alive: Int64s
    """[max_occurrences]: where those are that the path has followed so far."""
    tokens: Int32s
    """[max_occurrences]: what comes next there."""
    table_tokens: Int32s
    table_counts: Int32s
    table_stamps: Int64s
    """A hash table that is emptied by another stamp."""
    stamp: Int64s
    path: Int32s
    trial: Int32s


def power_of_two(least: int) -> int:
    """The smallest one that is not below it, 2 at least."""
    return 1 << max(least - 1, 1).bit_length()


def make_own_tokens(max_num_seqs: int, width: int) -> OwnTokens:
    """width: of the batch's array of tokens."""
    return OwnTokens(
        heads=np.zeros((max_num_seqs, power_of_two(max(width, 64))), np.int64),
        previous=np.zeros((max_num_seqs, width), np.int32),
        generations=np.zeros(max_num_seqs, np.int64),
        masks=np.full(max_num_seqs, -1, np.int64),
        num_taken=np.zeros(max_num_seqs, np.int32),
    )


def make_shared_tokens(max_num_seqs: int, capacity: int) -> SharedTokens:
    """capacity: a power of two."""
    return SharedTokens(
        ring=np.zeros((capacity, 5), np.int64),
        heads=np.zeros(capacity, np.int64),
        next_serial=np.ones(1, np.int64),
        row_keys=np.zeros(max_num_seqs, np.int64),
        row_starts=np.zeros(max_num_seqs, np.int32),
        row_taken=np.zeros(max_num_seqs, np.int32),
        row_last=np.zeros(max_num_seqs, np.int64),
    )


def make_workspace(
    max_occurrences: int, max_match: int, max_path: int, spec_factor: float, min_probability: float
) -> Workspace:
    table_size = power_of_two(2 * max_occurrences)
    return Workspace(
        factor=np.array([spec_factor, min_probability], np.float64),
        places=np.zeros(max_occurrences, np.int64),
        matched=np.zeros(max_occurrences, np.int32),
        by_matched=np.zeros(max_match + 1, np.int32),
        alive=np.zeros(max_occurrences, np.int64),
        tokens=np.zeros(max_occurrences, np.int32),
        table_tokens=np.zeros(table_size, np.int32),
        table_counts=np.zeros(table_size, np.int32),
        table_stamps=np.zeros(table_size, np.int64),
        stamp=np.zeros(1, np.int64),
        path=np.zeros(max_path, np.int32),
        trial=np.zeros(max_path, np.int32),
    )
