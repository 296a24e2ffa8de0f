"""Whether an output has begun to repeat itself: its last tokens are one pattern again and again."""

from __future__ import annotations

from collections.abc import Sequence

from ..mailbox.messages.sampling import RepetitionDetection


def ends_in_repetition(token_ids: Sequence[int], start: int, detection: RepetitionDetection) -> bool:
    """The last tokens of `token_ids[start:]` are a pattern of `min_pattern_size` to `max_pattern_size` tokens,
    `min_count` times in a row. Pure.

    Only the tail is looked at, newest token first, and a size is given up at its first mismatch: a token costs about
    one comparison for each size, at most sum(size * (min_count - 1)).
    """
    num_tokens = len(token_ids) - start
    longest = min(detection.max_pattern_size, num_tokens // detection.min_count)
    last = token_ids[-1]
    for size in range(detection.min_pattern_size, longest + 1):
        if token_ids[-1 - size] == last and _has_period(token_ids, size, size * (detection.min_count - 1)):
            return True
    return False


def _has_period(token_ids: Sequence[int], size: int, num_pairs: int) -> bool:
    """Each of the last `num_pairs` tokens equals the one `size` places before it."""
    end = len(token_ids)
    return all(token_ids[at] == token_ids[at - size] for at in range(end - 1, end - 1 - num_pairs, -1))
