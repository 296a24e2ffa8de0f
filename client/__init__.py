"""Python client of a running Callboard server, and an engine that is started from Python.

What needs the HTTP library is imported on first use: `Engine` starts its process before that is loaded.
"""

from typing import TYPE_CHECKING

from .batch_progress import BatchProgress
from .deltas import (
    Answer,
    CallMade,
    CallPiece,
    Choice,
    ClientDelta,
    ClientUsage,
    Logprob,
    ModelEntry,
    PromptLogprob,
    Tokens,
    TopLogprob,
)
from .engine import Engine
from .explanations import ChoiceExplanation, LiveRequest, Preemption, RequestExplanation, WaitingSeconds
from .params import ChatParams, CompletionParams
from .timeouts import NO_LIMITS, Timeouts

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .batch import BatchResult
    from .delta_stream import DeltaStream
    from .session import Session

__all__ = [
    "NO_LIMITS",
    "Answer",
    "AsyncClient",
    "BatchProgress",
    "BatchResult",
    "CallMade",
    "CallPiece",
    "ChatParams",
    "Choice",
    "ChoiceExplanation",
    "ClientDelta",
    "ClientUsage",
    "CompletionParams",
    "DeltaStream",
    "Engine",
    "LiveRequest",
    "Logprob",
    "ModelEntry",
    "Preemption",
    "PromptLogprob",
    "RequestExplanation",
    "Session",
    "Timeouts",
    "Tokens",
    "TopLogprob",
    "WaitingSeconds",
]


def __getattr__(name: str) -> object:
    match name:
        case "AsyncClient":
            from .async_client import AsyncClient

            return AsyncClient
        case "BatchResult":
            from .batch import BatchResult

            return BatchResult
        case "DeltaStream":
            from .delta_stream import DeltaStream

            return DeltaStream
        case "Session":
            from .session import Session

            return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
