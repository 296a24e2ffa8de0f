"""What the fields of a request are checked against."""

from __future__ import annotations

import sys

import msgspec

from ..actors.frontend_api import FrontendAPI
from ..text.tool_calls import DEFAULT_FAMILY
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
    tool_family: str = ""
    """How the model writes tool calls, by the name of a family; empty: nobody looks for them."""
    tells_tools: bool = True
    """The chat template tells the model of its tools, as far as is known."""
    reasoning_style: str = ""
    """How the model marks its reasoning; empty: it has none, or nobody looks for it."""
    processes_logprobs: bool = False
    """What a request without `logprobs_mode` gets: log-probabilities after all processing, not the model's own."""


def served_model(frontend: FrontendAPI, settings: ServerSection) -> ServedModel:
    """As the frontend and `[server]` say it. A parser that is still `auto` was not found in the chat template."""
    tool_call_parser = frontend.tool_call_parser
    return ServedModel(
        name=frontend.model_name,
        max_model_len=frontend.max_model_len,
        vocab_size=frontend.vocab_size,
        max_live_requests=frontend.max_live_requests,
        has_priorities=frontend.has_priorities,
        takes_sessions=frontend.takes_sessions,
        tool_family={"none": "", "auto": DEFAULT_FAMILY.name}.get(tool_call_parser, tool_call_parser),
        tells_tools=tool_call_parser != "auto",
        reasoning_style="" if frontend.reasoning_parser in ("none", "auto") else frontend.reasoning_parser,
        processes_logprobs=settings.logprobs_mode == "processed",
    )
