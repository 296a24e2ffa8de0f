"""Where a request is in its life."""

from __future__ import annotations

from enum import Enum


class RequestState(Enum):
    """Everything after PREEMPTED is finished."""

    WAITING = "waiting"
    WAITING_FOR_GRAMMAR = "waiting_for_grammar"
    WAITING_FOR_REMOTE_KV = "waiting_for_remote_kv"
    """It holds the blocks that are being loaded: matched is not ready."""
    WAITING_FOR_INPUT = "waiting_for_input"
    """A streaming session between two inputs; it holds nothing, what it had computed may still be found."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Back in line: its blocks are freed, all its tokens will be computed again."""
    STOPPED = "stopped"
    LENGTH_CAPPED = "length_capped"
    ABORTED = "aborted"
    IGNORED = "ignored"
    """It could never have been served: it was told so at once, and never queued."""
    ERROR = "error"
    REPETITION = "repetition"
    """Its last tokens are one pattern again and again."""
    TIMEOUT = "timeout"
    """Its deadline passed."""

    @property
    def finish_reason(self) -> str:
        """What the client is told; only of a finished state."""
        return _FINISH_REASONS[self]


_FINISH_REASONS = {
    RequestState.STOPPED: "stop",
    RequestState.LENGTH_CAPPED: "length",
    RequestState.ABORTED: "abort",
    RequestState.IGNORED: "length",
    RequestState.ERROR: "error",
    RequestState.REPETITION: "repetition",
    RequestState.TIMEOUT: "timeout",
}
