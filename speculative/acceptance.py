"""Which drafts are accepted. A step draws behind the last token of a row and behind each of its drafts, and a draft is
accepted while it is what was drawn in its place; the rules differ in how that is drawn.

*Coupled*: the target's own sample, which (seed, choice, position) fix, whatever drafts there are. The tokens are those
without speculation.

*Rejection*: the draft with probability min(1, p / q), else a token from what p has more than q (`kernels.rejection`).
Tokens have the distribution that they have without speculation, but which they are depends on the drafts. Of a proposer
that draws its drafts from a distribution q, a share of sum over tokens of min(p, q) is accepted, the most that any rule
can; a draft that was not drawn is accepted with p by either.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Rule = Literal["coupled", "rejection"]

NO_DRAFT = -1


def count_accepted(drawn: Int32s, drafts: Int32s, counts: Int32s) -> Int32s:
    """int32 [r]: tokens of each row that count, the accepted drafts and one more.

    Row i draws counts[i] >= 1 times, in sum k. drawn: int32 [k], row after row; drafts: int32 [k], the draft that
    stands in the same place; behind each row's last draft stands anything."""
    places = np.arange(drawn.size)
    stops = np.where(_is_last(counts) | (drawn != drafts), places, drawn.size)
    firsts = np.cumsum(counts) - counts
    if not counts.size:
        return np.zeros(0, np.int32)
    taken: Int32s = (np.minimum.reduceat(stops, firsts) - firsts + 1).astype(np.int32)
    return taken


def drafts_of_places(token_ids: Int32s, counts: Int32s) -> Int32s:
    """int32 [k]: the draft of each place that is drawn for, `NO_DRAFT` behind each row's last one. token_ids: int32
    [k], as they stand in the batch; counts: int32 [r], in sum k."""
    return np.where(_is_last(counts), np.int32(NO_DRAFT), token_ids)


def first_places(taken: Int32s, counts: Int32s) -> Bools:
    """bool [sum(counts)]: of counts[i] places of each row the first taken[i]; int32 [r] each."""
    starts = np.cumsum(counts) - counts
    is_first: Bools = np.arange(int(counts.sum())) - np.repeat(starts, counts) < np.repeat(taken, counts)
    return is_first


def _is_last(counts: Int32s) -> Bools:
    """bool [sum(counts)]: the last place of each row."""
    is_last = np.zeros(int(counts.sum()), np.bool_)
    is_last[np.cumsum(counts) - 1] = True
    return is_last
