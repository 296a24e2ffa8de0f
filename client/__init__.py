"""Python client of a running Callboard server, and an engine that is started from Python."""

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
