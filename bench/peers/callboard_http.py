"""`callboard serve`: a row for each dtype."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from .http_peer import HttpPeer
from .peer import Peer, PeerOptions


def find(options: PeerOptions) -> Sequence[Peer]:
    return [HttpPeer(f"callboard {dtype}", _command(options, dtype)) for dtype in options.dtypes]


def _command(options: PeerOptions, dtype: str) -> Callable[[int], Sequence[str]]:
    settings = [word for setting in options.settings for word in ("--set", setting)]
    serve = [sys.executable, "-P", "-m", "callboard.cli.main", "serve", options.model, "--dtype", dtype, *settings]
    return lambda port: [*serve, "--port", str(port)]
