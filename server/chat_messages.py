"""`messages` of a chat request: from JSON to what the chat template gets to see."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import InvalidRequest, NotSupportedYet
from ..mailbox.messages.requests import ChatMessage, ToolCall
from .request_body import decode_field, is_null

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content; parts of other types carry other fields."""

    type: str
    text: str | None = None


class FunctionFields(msgspec.Struct, frozen=True):
    """What an earlier call called."""

    name: str
    arguments: str | None = None


class ToolCallFields(msgspec.Struct, frozen=True):
    """A call in an assistant message of the history."""

    function: FunctionFields
    id: str | None = None


class MessageFields(msgspec.Struct, frozen=True):
    """One message; any role is passed on to the chat template."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallFields] | None = None
    tool_call_id: str | None = None
    function_call: FunctionFields | None = None
    """A call in OpenAI's older form."""
    reasoning_content: str | None = None
    """Of an earlier answer, sent back; `reasoning` is the same."""
    reasoning: str | None = None


_MESSAGE_DECODER = msgspec.json.Decoder(MessageFields)
_MESSAGE_NAMES = frozenset(MessageFields.__struct_fields__)
_RAW_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


def chat_messages(raws: Sequence[msgspec.Raw]) -> tuple[ChatMessage, ...]:
    """At least one. Raises InvalidRequest, NotSupportedYet."""
    if not raws:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    return tuple(_message(raw, f"messages[{index}]") for index, raw in enumerate(raws))


def unseen_fields(raws: Sequence[msgspec.Raw]) -> list[str]:
    """Fields of messages that the chat template does not get to see; null is the same as absent."""
    names = []
    for index, raw in enumerate(raws):
        param = f"messages[{index}]"
        given = decode_field(raw, _RAW_FIELDS_DECODER, param)
        names += [
            f"{param}.{name}" for name, value in given.items() if name not in _MESSAGE_NAMES and not is_null(value)
        ]
    return names


def _message(raw: msgspec.Raw, param: str) -> ChatMessage:
    fields = decode_field(raw, _MESSAGE_DECODER, param)
    made = [(call.id or "", call.function) for call in fields.tool_calls or ()]
    if fields.function_call is not None:
        made.append(("", fields.function_call))
    calls = tuple(ToolCall(call_id, function.name, function.arguments or "") for call_id, function in made)
    return ChatMessage(
        role=fields.role,
        content=_content(fields.content, f"{param}.content"),
        name=fields.name,
        tool_calls=calls,
        tool_call_id=fields.tool_call_id,
        reasoning_content=fields.reasoning if fields.reasoning_content is None else fields.reasoning_content,
    )


def _content(content: str | list[ContentPart] | None, param: str) -> str | None:
    """Text parts joined by line feeds: one part is the same as a string."""
    if content is None or isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type not in TEXT_PARTS:
            raise NotSupportedYet(f"content of type {part.type!r}", param=f"{param}[{index}].type")
        if part.text is None:
            raise InvalidRequest(f"{param}[{index}].text is missing", param=f"{param}[{index}].text")
        texts.append(part.text)
    return "\n".join(texts)
