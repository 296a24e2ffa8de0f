"""From what was found in an answer's text to the objects of the API."""

from __future__ import annotations

from msgspec import UNSET

from .answer_objects import ChunkDelta, FunctionCall, FunctionCallDelta, Message, ToolCallDelta, ToolCallObject
from .answer_parser import CallPiece, Parsed


def chunk_delta(parsed: Parsed, *, is_legacy: bool) -> ChunkDelta:
    """What a chunk adds."""
    calls = [_call_delta(call) for call in parsed.calls]
    reasoning = parsed.reasoning or UNSET
    return ChunkDelta(
        content=parsed.content or UNSET,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=calls if calls and not is_legacy else UNSET,
        function_call=calls[0].function if calls and is_legacy else UNSET,
    )


def message(parsed: Parsed, echo_text: str, *, is_legacy: bool) -> Message:
    """All of an answer; `echo_text`: what its content begins with."""
    calls = [ToolCallObject(call.id, FunctionCall(call.name, call.arguments)) for call in parsed.calls]
    content = echo_text + parsed.content
    reasoning = parsed.reasoning or UNSET
    return Message(
        content if content or not calls else None,
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=calls if calls and not is_legacy else UNSET,
        function_call=calls[0].function if calls and is_legacy else UNSET,
    )


def _call_delta(call: CallPiece) -> ToolCallDelta:
    if not call.name:
        return ToolCallDelta(call.index, FunctionCallDelta(call.arguments))
    return ToolCallDelta(call.index, FunctionCallDelta(call.arguments, call.name), call.id, "function")
