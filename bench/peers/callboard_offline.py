"""`callboard.Engine` in a process of its own: a row for each dtype."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .line_peer import LinePeer
from .peer import Peer, PeerOptions


def find(options: PeerOptions) -> Sequence[Peer]:
    worker = [sys.executable, "-P", "-m", "callboard.bench.peers.callboard_engine", options.model]
    return [
        LinePeer(f"callboard {dtype} offline", [*worker, f"model.dtype={dtype}", *options.settings])
        for dtype in options.dtypes
    ]
