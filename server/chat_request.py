"""POST /v1/chat/completions: from the body to a `GenerationRequest`."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest, NotSupportedYet
from ..mailbox.messages.requests import ChatMessage, ChatPrompt, ToolCall
from .generation_request import GenerationRequest
from .request_body import RequestBody, decode_field
from .request_fields import (
    SHARED_DECODER,
    SHARED_NAMES,
    MaxTokens,
    TopLogprobs,
    check_length,
    check_model,
    includes_usage,
    sampling_params,
)
from .unsupported_fields import SPECIAL_TOKENS_IN_CHAT, is_null, refuse_unsupported

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class ChatFields(msgspec.Struct, frozen=True):
    """The fields that chat alone has."""

    messages: list[msgspec.Raw]
    max_completion_tokens: MaxTokens | None = None
    """Goes before max_tokens."""
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


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


_CHAT_DECODER = msgspec.json.Decoder(ChatFields)
_MESSAGE_DECODER = msgspec.json.Decoder(MessageFields)
_MESSAGE_NAMES = frozenset(MessageFields.__struct_fields__)
_RAW_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES = SHARED_NAMES | frozenset(ChatFields.__struct_fields__)


def parse_chat_request(body: RequestBody, *, served_name: str, max_model_len: int) -> GenerationRequest:
    """Raises InvalidRequest, NotSupportedYet, UnknownModel."""
    shared = body.decode(SHARED_DECODER)
    check_model(shared, served_name)
    ignored = refuse_unsupported(body, supported=_NAMES, endpoint_fields=SPECIAL_TOKENS_IN_CHAT)
    fields = body.decode(_CHAT_DECODER)
    if not fields.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    messages = tuple(_message(raw, f"messages[{index}]") for index, raw in enumerate(fields.messages))
    ignored += [name for index, raw in enumerate(fields.messages) for name in _unknown(raw, f"messages[{index}]")]
    max_tokens_param = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = shared.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    check_length(max_tokens, max_tokens_param, None, max_model_len)
    return GenerationRequest(
        endpoint="chat",
        prompt=ChatPrompt(messages),
        sampling=sampling_params(
            shared, max_tokens=max_tokens, logprobs=(fields.top_logprobs or 0) if fields.logprobs else None
        ),
        num_choices=shared.n or 1,
        cache_salt=shared.cache_salt or "",
        returns_token_ids=bool(shared.return_token_ids),
        streams=bool(shared.stream),
        includes_usage=includes_usage(shared),
        ignored_fields=ignored,
    )


def _message(raw: msgspec.Raw, param: str) -> ChatMessage:
    fields = decode_field(raw, _MESSAGE_DECODER, param)
    calls = tuple(
        ToolCall(call.id or "", call.function.name, call.function.arguments or "") for call in fields.tool_calls or ()
    )
    return ChatMessage(
        role=fields.role,
        content=_content(fields.content, f"{param}.content"),
        name=fields.name,
        tool_calls=calls,
        tool_call_id=fields.tool_call_id,
    )


def _unknown(raw: msgspec.Raw, param: str) -> list[str]:
    """Fields of a message that the chat template does not get to see; null is the same as absent."""
    given = decode_field(raw, _RAW_FIELDS_DECODER, param)
    return [f"{param}.{name}" for name, value in given.items() if name not in _MESSAGE_NAMES and not is_null(value)]


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
