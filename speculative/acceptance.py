"""Which drafts are accepted.

*Coupled*: what the target draws at each position is fixed by (seed, choice, position), whatever drafts there are; so it
is drawn behind the last token and behind every draft, and a draft is accepted while it is what was drawn in its place.
The tokens are those without speculation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


def count_coupled(drawn: Int32s, drafts: Int32s, counts: Int32s) -> Int32s:
    """int32 [r]: tokens of each row that count, the accepted drafts and one more.

    Row i draws counts[i] >= 1 times, in sum k. drawn: int32 [k], row after row; drafts: int32 [k], the draft that
    stands in the same place; behind each row's last draft stands anything."""
    ends = np.cumsum(counts)
    is_last = np.zeros(drawn.size, np.bool_)
    is_last[ends - 1] = True
    places = np.arange(drawn.size)
    stops = np.where(is_last | (drawn != drafts), places, drawn.size)
    firsts = ends - counts
    if not counts.size:
        return np.zeros(0, np.int32)
    taken: Int32s = (np.minimum.reduceat(stops, firsts) - firsts + 1).astype(np.int32)
    return taken


def first_places(taken: Int32s, counts: Int32s) -> Bools:
    """bool [sum(counts)]: of counts[i] places of each row the first taken[i]; int32 [r] each."""
    starts = np.cumsum(counts) - counts
    is_first: Bools = np.arange(int(counts.sum())) - np.repeat(starts, counts) < np.repeat(taken, counts)
    return is_first
