"""The fields of a chat request that go into the chat template beside the messages."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import InvalidRequest
from ..mailbox.messages.requests import ChatMessage
from .request_body import decode_field, is_null

RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""Variables that fields of their own decide, or that nobody but the operator does."""

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

_FALSE = msgspec.Raw(b"false")
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, object])
_RAW_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS_DECODER = msgspec.json.Decoder(list[dict[str, object]])


def template_kwargs(
    kwargs: msgspec.Raw, documents: msgspec.Raw, reasoning_effort: ReasoningEffort | None = None
) -> bytes:
    """A JSON object for the template, empty if there is nothing in it. Raises InvalidRequest.

    All of it is decoded to be checked (depth, text that is no Unicode), and passed on as it came.
    """
    variables: dict[str, msgspec.Raw] = {}
    if not is_null(kwargs):
        decode_field(kwargs, _OBJECT_DECODER, "chat_template_kwargs")
        variables = decode_field(kwargs, _RAW_OBJECT_DECODER, "chat_template_kwargs")
        for name in sorted(RESERVED & variables.keys()):
            raise InvalidRequest(
                f"chat_template_kwargs: {name!r} is not a variable to set here; some are fields of the request",
                param=f"chat_template_kwargs.{name}",
            )
    for name, value in _effort_variables(reasoning_effort):
        variables.setdefault(name, value)
    if not is_null(documents) and decode_field(documents, _OBJECTS_DECODER, "documents"):
        variables["documents"] = documents
    return msgspec.json.encode(variables) if variables else b""


def _effort_variables(effort: ReasoningEffort | None) -> list[tuple[str, msgspec.Raw]]:
    """`reasoning_effort` as the templates of models that know it call it; `none` as they call the switch."""
    if effort is None:
        return []
    switches = [("enable_thinking", _FALSE), ("thinking", _FALSE)] if effort == "none" else []
    return [("reasoning_effort", msgspec.Raw(msgspec.json.encode(effort))), *switches]


def opens_answer(
    add_generation_prompt: bool | None, continue_final_message: bool | None, messages: tuple[ChatMessage, ...]
) -> bool:
    """`add_generation_prompt`, which is true unless the final message is to go on. Raises InvalidRequest."""
    if not continue_final_message:
        return add_generation_prompt is not False
    if add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt cannot both be true: an answer either goes on in the "
            "last message or begins a new one",
            param="continue_final_message",
        )
    if not messages[-1].content:
        raise InvalidRequest(
            "continue_final_message: the last message has no text to go on from", param="continue_final_message"
        )
    return False


def echo_text(messages: tuple[ChatMessage, ...]) -> str:
    """What `echo` puts before the answer: the last message, if it has the answer's role."""
    last = messages[-1]
    return last.content or "" if last.role == "assistant" else ""
