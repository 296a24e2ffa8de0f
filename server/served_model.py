"""What the fields of a request are checked against."""

from __future__ import annotations

import sys

import msgspec

from ..actors.frontend_api import FrontendAPI
from ..topology.schema import ServerSection


class ServedModel(msgspec.Struct, frozen=True):
    """The model and the engine's settings, as far as the validation of requests needs them."""

    name: str
    max_model_len: int
    """Prompt and output together [tokens]."""
    vocab_size: int
    max_live_requests: int = sys.maxsize
    """Choices that the engine holds at once: a request of more would never be served."""
    has_priorities: bool = False
    """The scheduler orders by priority; else a request's priority must be 0."""
    takes_sessions: bool = True
    """Streaming sessions can be opened here."""
    processes_logprobs: bool = False
    """What a request without `logprobs_mode` gets: log-probabilities after all processing, not the model's own."""


def served_model(frontend: FrontendAPI, settings: ServerSection) -> ServedModel:
    """As the frontend and `[server]` say it."""
    return ServedModel(
        name=frontend.model_name,
        max_model_len=frontend.max_model_len,
        vocab_size=frontend.vocab_size,
        max_live_requests=frontend.max_live_requests,
        has_priorities=frontend.has_priorities,
        takes_sessions=frontend.takes_sessions,
        processes_logprobs=settings.logprobs_mode == "processed",
    )
