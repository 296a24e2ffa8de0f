"""How long the client waits."""

from __future__ import annotations

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    """Time limits of one call; None: no limit. Beyond one the call raises `TimeLimitExceeded` and the connection is
    closed, so that the server aborts the request."""

    connect_s: float | None = 10.0
    """To connect [seconds]."""
    chunk_s: float | None = 60.0
    """Longest silence of a stream, and of the small endpoints; a Callboard server that has nothing to say sends a
    comment every 10 s [seconds]."""
    answer_s: float | None = 600.0
    """Longest silence before an answer that is not streamed: nothing comes of it until it is complete [seconds]."""
    total_s: float | None = None
    """For the whole call, repetitions and the time that the caller spends between deltas included [seconds]."""


NO_LIMITS = Timeouts(None, None, None, None)
