"""What a worker shows on its progress line while it loads; the supervisor draws a bar from it."""

from __future__ import annotations

import msgspec


class LoadingStatistics(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes of weights loaded, of how many."""

    bytes_done: int = 0
    bytes_total: int = 0
