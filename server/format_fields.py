"""The request fields that say what an answer has to look like, as OpenAI and the servers that came before name them.

`response_format` is OpenAI's, `structured_outputs` vLLM's, `guided_*` its older one; `json_schema`, `regex`, `ebnf` and
`structural_tag` are SGLang's, `json_schema` and `grammar` llama.cpp's. At most one may be given: nothing could satisfy
two. What is within a schema, an expression or a grammar is looked at by the grammar's own process, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
from msgspec import Raw

from ..errors import InvalidRequest, NotSupportedYet
from ..mailbox.messages.grammar import ChoiceFormat, GrammarFormat, JsonFormat, OneFormat, RegexFormat
from .request_body import NULL, decode_field, is_null
from .structural_tags import tags_format

MAX_FORMAT_BYTES = 1 << 20
"""Of a schema, an expression, a grammar or all choices together; those in use have under 100,000."""
ANY_OBJECT = JsonFormat('{"type":"object"}')


class FormatFields(msgspec.Struct, frozen=True):
    """Fields with the same meaning at both endpoints."""

    response_format: Raw = NULL
    structured_outputs: Raw = NULL
    guided_json: Raw = NULL
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    json_schema: Raw = NULL
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    structural_tag: Raw = NULL


FORMAT_DECODER = msgspec.json.Decoder(FormatFields)
FORMAT_NAMES = frozenset(FormatFields.__struct_fields__)


class NamedSchema(msgspec.Struct, frozen=True):
    """`response_format.json_schema`; `strict` changes nothing, for the schema always holds."""

    schema: Raw
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format`."""

    type: str
    json_schema: NamedSchema | None = None
    schema: Raw = NULL
    """With `json_object`, as llama.cpp has it."""
    grammar: str | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`structured_outputs`: exactly one kind."""

    json: Raw = NULL
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Raw = NULL
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    disable_fallback: bool | None = None
    """There is none."""


class AskedFormat(msgspec.Struct, frozen=True):
    """A format, and the field that it came from."""

    format: OneFormat
    param: str


T = TypeVar("T")

_Found = Iterator[tuple[str, Callable[[], OneFormat | None]]]
"""Fields that are given, each with what makes its format; None: it asks for none."""

_RESPONSE_FORMAT = msgspec.json.Decoder(ResponseFormat)
_STRUCTURED_OUTPUTS = msgspec.json.Decoder(StructuredOutputs)
_SCHEMA = msgspec.json.Decoder(dict[str, object] | bool)
_TEXT = msgspec.json.Decoder(str)


def asked_format(fields: FormatFields) -> AskedFormat | None:
    """The one format that is asked for; None: text. Raises InvalidRequest, NotSupportedYet."""
    found = [AskedFormat(made, param) for param, make in _given(fields) if (made := make()) is not None]
    if len(found) > 1:
        names = " and ".join(asked.param for asked in found)
        raise InvalidRequest(
            f"{names}: an answer can have one format only; leave all but one out", param=found[1].param
        )
    return found[0] if found else None


def _given(fields: FormatFields) -> _Found:
    if not is_null(fields.response_format):
        yield "response_format", lambda: _response_format(fields.response_format)
    if not is_null(fields.structured_outputs):
        yield from _structured_outputs(
            decode_field(fields.structured_outputs, _STRUCTURED_OUTPUTS, "structured_outputs")
        )
    for name, schema in (("guided_json", fields.guided_json), ("json_schema", fields.json_schema)):
        yield from _schema_in(name, schema)
    for name, pattern in (("guided_regex", fields.guided_regex), ("regex", fields.regex)):
        yield from _text_in(name, pattern, RegexFormat)
    for name, grammar in (
        ("guided_grammar", fields.guided_grammar),
        ("ebnf", fields.ebnf),
        ("grammar", fields.grammar),
    ):
        if grammar != "":  # llama.cpp's clients send an empty one for none
            yield from _text_in(name, grammar, GrammarFormat)
    if fields.guided_choice is not None:
        yield "guided_choice", lambda: choice_format(fields.guided_choice or [], "guided_choice")
    if fields.guided_json_object:
        yield "guided_json_object", lambda: ANY_OBJECT
    if not is_null(fields.structural_tag):
        yield "structural_tag", lambda: tags_format(fields.structural_tag, "structural_tag")


def _response_format(raw: Raw) -> OneFormat | None:
    asked = decode_field(raw, _RESPONSE_FORMAT, "response_format")
    match asked.type:
        case "text":
            return None
        case "json_object" if is_null(asked.schema):
            return ANY_OBJECT
        case "json_object":
            return schema_format(asked.schema, "response_format.schema")
        case "json_schema" if asked.json_schema is not None:
            return schema_format(asked.json_schema.schema, "response_format.json_schema.schema")
        case "json_schema":
            raise InvalidRequest(
                "response_format.json_schema is missing: an object with name and schema",
                param="response_format.json_schema",
            )
        case "structural_tag":
            return tags_format(raw, "response_format")
        case "grammar" if asked.grammar:
            return _checked(GrammarFormat(asked.grammar), asked.grammar, "response_format.grammar")
    raise InvalidRequest(
        f"response_format.type is {asked.type[:80]!r}; allowed are text, json_object, json_schema, structural_tag, and "
        "grammar beside a grammar",
        param="response_format.type",
    )


def _structured_outputs(asked: StructuredOutputs) -> _Found:
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        if getattr(asked, name) not in (None, False):
            raise NotSupportedYet(f"structured_outputs.{name}", param=f"structured_outputs.{name}")
    kinds = list(_kinds(asked))
    if not kinds:
        raise InvalidRequest(
            "structured_outputs names no format: one of json, regex, choice, grammar, json_object, structural_tag",
            param="structured_outputs",
        )
    yield from kinds


def _kinds(asked: StructuredOutputs) -> _Found:
    prefix = "structured_outputs"
    yield from _schema_in(f"{prefix}.json", asked.json)
    yield from _text_in(f"{prefix}.regex", asked.regex, RegexFormat)
    if asked.choice is not None:
        yield f"{prefix}.choice", lambda: choice_format(asked.choice or [], f"{prefix}.choice")
    yield from _text_in(f"{prefix}.grammar", asked.grammar, GrammarFormat)
    if asked.json_object:
        yield f"{prefix}.json_object", lambda: ANY_OBJECT
    if not is_null(asked.structural_tag):
        yield f"{prefix}.structural_tag", lambda: tags_format(asked.structural_tag, f"{prefix}.structural_tag")


def _schema_in(param: str, schema: Raw) -> _Found:
    if not is_null(schema):
        yield param, lambda: schema_format(schema, param)


def _text_in(param: str, text: str | None, kind: type[RegexFormat] | type[GrammarFormat]) -> _Found:
    if text is not None:
        yield param, lambda: _checked(kind(text), text, param)


def schema_format(raw: Raw, param: str) -> JsonFormat:
    """`raw` is a schema, or a string that holds the JSON text of one."""
    text = bytes(raw).strip()
    if text.startswith(b'"'):
        text = decode_field(text, _TEXT, param).encode("utf-8", "surrogatepass")
    decode_field(text, _SCHEMA, param)
    return _checked(JsonFormat(text.decode()), text, param)


def choice_format(choices: list[str], param: str) -> ChoiceFormat:
    """Each text once."""
    if not choices:
        raise InvalidRequest(f"{param} is empty: no answer could be given", param=param)
    return _checked(ChoiceFormat(tuple(dict.fromkeys(choices))), "".join(choices), param)


def _checked(made: T, text: str | bytes, param: str) -> T:
    """`made`, if the text that it came from has a bearable size and there is some."""
    if not text:
        raise InvalidRequest(f"{param} is empty", param=param)
    if len(text) > MAX_FORMAT_BYTES:
        raise InvalidRequest(f"{param} has {len(text):,} characters, the limit is {MAX_FORMAT_BYTES:,}", param=param)
    return made
