"""Request fields that clients of other servers send and that this version does not act on.

`NO_EFFECT`: accepted, since an answer without them is still right. `UNSUPPORTED`: accepted with a neutral value, else
refused by name, since an answer without them would not be what was asked for.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
from msgspec import Raw

from ..errors import InvalidRequest, NotSupportedYet
from .request_body import RequestBody, decode_field, is_null

T = TypeVar("T")

NO_EFFECT = frozenset(
    {
        "user",
        "store",
        "metadata",
        "service_tier",
        "parallel_tool_calls",
        "prediction",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "include_reasoning",
        "separate_reasoning",
        "stream_reasoning",
        "guided_decoding_backend",
        "spaces_between_special_tokens",
    }
)


class Field(msgspec.Struct, Generic[T], frozen=True):
    """An unsupported field: the type that a value must have to be understood, and the values that change nothing."""

    decoder: msgspec.json.Decoder[T]
    neutral: tuple[object, ...]
    why_never: str = ""
    """Of a field that is not to be supported: the reason."""


def _field(type_: object, *neutral: object, why_never: str = "") -> Field[object]:
    return Field(msgspec.json.Decoder(type_), (None, *neutral), why_never)


_OBJECT = dict[str, Raw] | None
_OBJECTS = list[dict[str, Raw]] | None
_STRINGS = list[str] | None
_BOOL = bool | None
_ANY = Raw
_NO_CODE = "no code comes with a request"
_NO_TEMPLATE = "the template is the model's, or the operator's (model.chat_template in the topology)"
_CHAT_ONLY = "it is for /v1/chat/completions, whose template tells the model"

UNSUPPORTED: dict[str, Field[object]] = {
    "use_beam_search": _field(_BOOL, False),
    "length_penalty": _field(float | None, 1.0),
    "suffix": _field(str | None, ""),
    "stop_regex": _field(_ANY),
    "no_stop_trim": _field(_BOOL, False),
    "prompt_embeds": _field(_ANY),
    "return_hidden_states": _field(_BOOL, False),
    "logits_processors": _field(list[Raw] | None, [], why_never=_NO_CODE),
    "custom_logit_processor": _field(_ANY, why_never=_NO_CODE),
    "tools": _field(_OBJECTS, [], why_never=_CHAT_ONLY),
    "tool_choice": _field(str | dict[str, Raw] | None, "none", "auto", why_never=_CHAT_ONLY),
    "functions": _field(_OBJECTS, [], why_never=_CHAT_ONLY),
    "function_call": _field(str | dict[str, Raw] | None, "none", "auto", why_never=_CHAT_ONLY),
    "guided_whitespace_pattern": _field(_ANY),
    "modalities": _field(_STRINGS, ["text"], []),
    "audio": _field(_OBJECT),
    "web_search_options": _field(_OBJECT),
    "mm_processor_kwargs": _field(_OBJECT, {}),
    "reasoning_effort": _field(str | None, "none", why_never=_CHAT_ONLY),
    "thinking_token_budget": _field(int | None),
    "verbosity": _field(str | None, "medium"),
    "chat_template": _field(str | None, why_never=_NO_TEMPLATE),
    "lora_path": _field(_ANY),
    "session": _field(_BOOL, False),
    "session_params": _field(_ANY),
    "kv_transfer_params": _field(_OBJECT, {}),
    "vllm_xargs": _field(_OBJECT, {}),
    "custom_params": _field(_ANY),
}


def refuse_unsupported(request: RequestBody, *, supported: frozenset[str]) -> list[str]:
    """Refuse fields that would change the answer; return the names that nobody knows, in the request's order.

    `supported`: the fields that the endpoint reads itself. Raises InvalidRequest for a wrong type and for what is not
    to be supported, NotSupportedYet else.
    """
    unknown = []
    for name, raw in request.fields.items():
        if name in supported or name in NO_EFFECT:
            continue
        field = UNSUPPORTED.get(name)
        if field is None:
            unknown.append(name)
        elif not is_null(raw):
            value = decode_field(raw, field.decoder, name)
            if any(value == neutral for neutral in field.neutral):
                continue
            if field.why_never:
                raise InvalidRequest(f"{name} is not supported: {field.why_never}", param=name, code="not_supported")
            raise NotSupportedYet(_named(name, value), param=name)
    return unknown


def _named(name: str, value: object) -> str:
    """The feature as the message calls it, with the part of the value that helps to find it."""
    match value:
        case bool() | int() | float() | str():
            return f"{name}={value!r}"
        case _:
            return name
