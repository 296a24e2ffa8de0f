"""Python client of a running Callboard server, and an engine that is started from Python.

Names are imported on first use: `Engine` starts its process before the HTTP library is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .batch import BatchResult
    from .batch_progress import BatchProgress
    from .delta_stream import DeltaStream
    from .deltas import Answer, Choice, ClientDelta, ClientUsage, Logprob, ModelEntry, PromptLogprob, Tokens, TopLogprob
    from .engine import Engine
    from .explanations import ChoiceExplanation, LiveRequest, Preemption, RequestExplanation, WaitingSeconds
    from .params import ChatParams, CompletionParams
    from .session import Session
    from .timeouts import NO_LIMITS, Timeouts

__all__ = [
    "NO_LIMITS",
    "Answer",
    "AsyncClient",
    "BatchProgress",
    "BatchResult",
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

_MODULES = {
    "async_client": ("AsyncClient",),
    "batch": ("BatchResult",),
    "batch_progress": ("BatchProgress",),
    "delta_stream": ("DeltaStream",),
    "deltas": (
        "Answer",
        "Choice",
        "ClientDelta",
        "ClientUsage",
        "Logprob",
        "ModelEntry",
        "PromptLogprob",
        "Tokens",
        "TopLogprob",
    ),
    "engine": ("Engine",),
    "explanations": (
        "ChoiceExplanation",
        "LiveRequest",
        "Preemption",
        "RequestExplanation",
        "WaitingSeconds",
    ),
    "params": (
        "ChatParams",
        "CompletionParams",
    ),
    "session": ("Session",),
    "timeouts": (
        "NO_LIMITS",
        "Timeouts",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
