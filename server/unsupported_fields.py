"""Request fields that clients of other servers send and that this version does not act on.

`NO_EFFECT`: accepted, since an answer without them is still right. `UNSUPPORTED`: accepted with a neutral value, else
refused by name, since an answer without them would not be what was asked for.
"""

from __future__ import annotations

import re
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from ..errors import NotSupportedYet
from .request_body import RequestBody, decode_field

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
        "prompt_cache_retention",
        "include_reasoning",
        "spaces_between_special_tokens",
    }
)


class Field(msgspec.Struct, Generic[T], frozen=True):
    """An unsupported field: the type that a value must have to be understood, and the values that change nothing."""

    decoder: msgspec.json.Decoder[T]
    neutral: tuple[object, ...]


def _field(type_: object, *neutral: object) -> Field[object]:
    return Field(msgspec.json.Decoder(type_), (None, *neutral))


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format`; what stands beside `type` is not looked at."""

    type: Literal["text", "json_object", "json_schema", "grammar", "structural_tag"]


_OBJECT = dict[str, Raw] | None
_OBJECTS = list[dict[str, Raw]] | None
_STRINGS = list[str] | None
_BOOL = bool | None
_ANY = Raw
_PENALTY = Annotated[float, Meta(ge=-2, le=2)] | None
_COUNT = Annotated[int, Meta(ge=0)] | None
_ONE_OR_MORE = Annotated[int, Meta(ge=1)] | None

UNSUPPORTED: dict[str, Field[object]] = {
    "best_of": _field(_ONE_OR_MORE, 1),
    "use_beam_search": _field(_BOOL, False),
    "length_penalty": _field(float | None, 1.0),
    "echo": _field(_BOOL, False),
    "suffix": _field(str | None, ""),
    "logit_bias": _field(_OBJECT, {}),
    "presence_penalty": _field(_PENALTY, 0.0),
    "frequency_penalty": _field(_PENALTY, 0.0),
    "repetition_penalty": _field(Annotated[float, Meta(gt=0)] | None, 1.0),
    "repetition_detection": _field(_ANY),
    "min_tokens": _field(_COUNT, 0),
    "stop_token_ids": _field(list[int] | None, []),
    "stop_regex": _field(_ANY),
    "include_stop_str_in_output": _field(_BOOL, False),
    "no_stop_trim": _field(_BOOL, False),
    "skip_special_tokens": _field(_BOOL, True),
    "bad_words": _field(_STRINGS, []),
    "allowed_token_ids": _field(list[int] | None),
    "prompt_logprobs": _field(int | None),
    "truncate_prompt_tokens": _field(int | None),
    "prompt_embeds": _field(_ANY),
    "return_tokens_as_token_ids": _field(_BOOL, False),
    "return_hidden_states": _field(_BOOL, False),
    "logits_processors": _field(list[Raw] | None, []),
    "custom_logit_processor": _field(_ANY),
    "tools": _field(_OBJECTS, []),
    "tool_choice": _field(str | dict[str, Raw] | None, "none", "auto"),
    "functions": _field(_OBJECTS, []),
    "function_call": _field(str | dict[str, Raw] | None, "none", "auto"),
    "response_format": _field(ResponseFormat | None, ResponseFormat("text")),
    "structured_outputs": _field(_ANY),
    "guided_json": _field(_ANY),
    "guided_regex": _field(_ANY),
    "guided_choice": _field(_ANY),
    "guided_grammar": _field(_ANY),
    "guided_json_object": _field(_BOOL, False),
    "guided_decoding_backend": _field(_ANY),
    "guided_whitespace_pattern": _field(_ANY),
    "structural_tag": _field(_ANY),
    "json_schema": _field(_ANY),
    "regex": _field(_ANY),
    "ebnf": _field(_ANY),
    "modalities": _field(_STRINGS, ["text"], []),
    "audio": _field(_OBJECT),
    "web_search_options": _field(_OBJECT),
    "mm_processor_kwargs": _field(_OBJECT, {}),
    "reasoning_effort": _field(str | None, "none"),
    "thinking_token_budget": _field(int | None),
    "verbosity": _field(str | None, "medium"),
    "priority": _field(int | None, 0),
    "chat_template": _field(str | None),
    "chat_template_kwargs": _field(_OBJECT, {}),
    "add_generation_prompt": _field(_BOOL, True),
    "continue_final_message": _field(_BOOL, False),
    "documents": _field(_OBJECTS, []),
    "lora_path": _field(_ANY),
    "session_params": _field(_ANY),
    "kv_transfer_params": _field(_OBJECT, {}),
    "vllm_xargs": _field(_OBJECT, {}),
    "custom_params": _field(_ANY),
}

SPECIAL_TOKENS_IN_CHAT = {"add_special_tokens": _field(_BOOL, False)}
"""The chat template writes the special tokens itself."""
SPECIAL_TOKENS_IN_TEXT = {"add_special_tokens": _field(_BOOL, True)}
"""A text prompt gets those that the model's tokenizer adds."""

_NULL = re.compile(rb"\s*null\s*")


def is_null(raw: Raw) -> bool:
    """The value of a field that is as good as left out."""
    return _NULL.fullmatch(raw) is not None


def refuse_unsupported(
    request: RequestBody, *, supported: frozenset[str], endpoint_fields: dict[str, Field[object]]
) -> list[str]:
    """Refuse fields that would change the answer; return the names that nobody knows, in the request's order.

    `supported`: the fields that the endpoint reads itself; `endpoint_fields`: unsupported ones whose neutral value is
    the endpoint's own. Raises InvalidRequest for a wrong type, NotSupportedYet else.
    """
    unknown = []
    for name, raw in request.fields.items():
        if name in supported or name in NO_EFFECT:
            continue
        field = UNSUPPORTED.get(name) or endpoint_fields.get(name)
        if field is None:
            unknown.append(name)
        elif not is_null(raw):
            value = decode_field(raw, field.decoder, name)
            if not any(value == neutral for neutral in field.neutral):
                raise NotSupportedYet(_named(name, value), param=name)
    return unknown


def _named(name: str, value: object) -> str:
    """The feature as the message calls it, with the part of the value that helps to find it."""
    match value:
        case ResponseFormat(type=kind):
            return f"{name} of type {kind}"
        case dict() if name == "logit_bias":
            keys = list(value)
            return f"{name} (keys {', '.join(map(repr, keys[:8]))}{', ...' if len(keys) > 8 else ''})"
        case bool() | int() | float() | str():
            return f"{name}={value!r}"
        case _:
            return name
