"""What the layers of each window look at in the largest step (execution/attention.py makes it once for all of them)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class View(msgspec.Struct, frozen=True):
    """Of the layers that share a window, or have none. Lengths in tokens."""

    chunk_keys: int
    """Keys that the chunk's tokens see together."""
    mask_elements: int
    """Of the chunk's mask; 0 where all its keys are its own, each token's up to itself."""
    seen: int
    """Keys of all decoding rows together, padding included."""


def views_of(
    windows: Sequence[int | None], num_chunk_tokens: int, num_decodes: int, length: int, most_seen: int
) -> list[View]:
    """One for each window in `windows` (by layer; empty: no layer has one) that hides something of rows of `length`
    tokens, and one for all layers in which nothing is hidden."""
    hiding = [None if window is None or window >= length else window for window in windows or (None,)]
    views = []
    for window in dict.fromkeys(hiding):
        width = length if window is None else window
        chunk_keys = min(length, num_chunk_tokens + width - 1)
        is_masked = num_chunk_tokens < length or num_chunk_tokens > width
        views.append(
            View(
                chunk_keys=chunk_keys,
                mask_elements=num_chunk_tokens * chunk_keys if is_masked else 0,
                seen=min(num_decodes * width, most_seen),
            )
        )
    return views
