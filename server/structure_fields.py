"""`format` of a structural tag, as XGrammar and vLLM name its kinds: what an answer is built of.

https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html. A field that is not known is refused, since it would say
what may come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw

from ..errors import InvalidRequest, NotSupportedYet
from ..mailbox.messages.structures import (
    AnyText,
    ConstText,
    Element,
    GrammarText,
    InOrder,
    OneOf,
    PatternText,
    Repeated,
    SchemaText,
    SeparatedTags,
    Tagged,
    TriggeredTags,
)
from .request_body import decode_field

MAX_DEPTH = 32
MAX_PARTS = 1024
"""In one list."""
MAX_COUNT = 10_000
"""Of a repetition."""

NonEmpty = Annotated[str, Meta(min_length=1)]
Texts = Annotated[list[NonEmpty], Meta(max_length=MAX_PARTS)]
SomeTexts = Annotated[list[NonEmpty], Meta(min_length=1, max_length=MAX_PARTS)]
Parts = Annotated[list[Raw], Meta(min_length=1, max_length=MAX_PARTS)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]

_NOT_YET = (
    "token", "exclude_token", "any_tokens", "token_triggered_tags", "dispatch", "token_dispatch", "qwen_xml_parameter",
)  # fmt: skip


class _Kind(msgspec.Struct, frozen=True):
    type: str = "tag"
    """It may be left out of the entries of `tags`."""


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str = "tag"


class _ConstString(_Fields, frozen=True, kw_only=True):
    value: str


class _JsonSchema(_Fields, frozen=True, kw_only=True):
    json_schema: Raw
    style: str = "json"
    any_order: bool = False
    max_whitespace_cnt: int | None = None
    excludes: list[str] = []


class _Grammar(_Fields, frozen=True, kw_only=True):
    grammar: NonEmpty
    syntax: str = "ebnf"


class _Regex(_Fields, frozen=True, kw_only=True):
    pattern: NonEmpty


class _AnyText(_Fields, frozen=True, kw_only=True):
    excludes: Texts = []
    max_tokens: int | None = None
    max_chars: int | None = None


class _Elements(_Fields, frozen=True, kw_only=True):
    elements: Parts


class _Content(_Fields, frozen=True, kw_only=True):
    content: Raw


class _Repeat(_Fields, frozen=True, kw_only=True):
    content: Raw
    min: Count
    max: Annotated[int, Meta(ge=-1, le=MAX_COUNT)]


class _Tag(_Fields, frozen=True, kw_only=True):
    begin: str | dict[str, object]
    content: Raw
    end: str | list[str] | dict[str, object]


class _TriggeredTags(_Fields, frozen=True, kw_only=True):
    triggers: SomeTexts
    tags: Parts
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: Texts = []


class _SeparatedTags(_Fields, frozen=True, kw_only=True):
    tags: Parts
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


F = TypeVar("F", bound=_Fields)

_KIND = msgspec.json.Decoder(_Kind)
_SCHEMA = msgspec.json.Decoder(dict[str, object] | bool)


def structure_of(raw: Raw | bytes, param: str, depth: int = 0) -> Element:
    """Raises InvalidRequest naming the place within `param`, NotSupportedYet naming the kind."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{param} is nested deeper than {MAX_DEPTH} levels", param=param)
    kind = decode_field(raw, _KIND, param).type
    if kind in _NOT_YET:
        raise NotSupportedYet(f"{param} of type {kind!r}", param=f"{param}.type")
    make = _KINDS.get(kind)
    if make is None:
        raise InvalidRequest(f"{param}.type is {kind[:80]!r}; allowed are {', '.join(_KINDS)}", param=f"{param}.type")
    return make(raw, param, depth + 1)


def _fields(raw: Raw | bytes, fields: type[F], param: str) -> F:
    return decode_field(raw, msgspec.json.Decoder(fields), param)


def _refuse_set(asked: _Fields, param: str, **defaults: object) -> None:
    for name, default in defaults.items():
        if getattr(asked, name) != default:
            raise NotSupportedYet(f"{param}.{name}", param=f"{param}.{name}")


def _const_string(raw: Raw | bytes, param: str, depth: int) -> Element:
    return ConstText(_fields(raw, _ConstString, param).value)


def _json_schema(raw: Raw | bytes, param: str, depth: int) -> Element:
    asked = _fields(raw, _JsonSchema, param)
    _refuse_set(asked, param, style="json", any_order=False, max_whitespace_cnt=None, excludes=[])
    decode_field(asked.json_schema, _SCHEMA, f"{param}.json_schema")
    return SchemaText(bytes(asked.json_schema).decode())


def _grammar(raw: Raw | bytes, param: str, depth: int) -> Element:
    asked = _fields(raw, _Grammar, param)
    if asked.syntax not in ("ebnf", "lark"):
        raise InvalidRequest(
            f"{param}.syntax is {asked.syntax[:80]!r}; allowed are ebnf and lark", param=f"{param}.syntax"
        )
    return GrammarText(asked.grammar)


def _regex(raw: Raw | bytes, param: str, depth: int) -> Element:
    return PatternText(_fields(raw, _Regex, param).pattern)


def _any_text(raw: Raw | bytes, param: str, depth: int) -> Element:
    asked = _fields(raw, _AnyText, param)
    _refuse_set(asked, param, max_tokens=None, max_chars=None)
    return AnyText(tuple(asked.excludes))


def _elements(raw: Raw | bytes, param: str, depth: int) -> tuple[Element, ...]:
    elements = _fields(raw, _Elements, param).elements
    return tuple(structure_of(part, f"{param}.elements[{index}]", depth) for index, part in enumerate(elements))


def _repeated(raw: Raw | bytes, param: str, depth: int, least: int, most: int | None) -> Element:
    return Repeated(structure_of(_fields(raw, _Content, param).content, f"{param}.content", depth), least, most)


def _repeat(raw: Raw | bytes, param: str, depth: int) -> Element:
    asked = _fields(raw, _Repeat, param)
    if 0 <= asked.max < asked.min:
        raise InvalidRequest(f"{param}.min is {asked.min}, more than max, {asked.max}", param=f"{param}.min")
    content = structure_of(asked.content, f"{param}.content", depth)
    return Repeated(content, asked.min, None if asked.max < 0 else asked.max)


def _tag(raw: Raw | bytes, param: str, depth: int) -> Tagged:
    asked = _fields(raw, _Tag, param)
    begin, ends = asked.begin, [asked.end] if isinstance(asked.end, str) else asked.end
    for name, value in (("begin", begin), ("end", ends)):
        if isinstance(value, dict):
            raise NotSupportedYet(f"{param}.{name} of type 'token'", param=f"{param}.{name}")
    assert isinstance(begin, str) and isinstance(ends, list)
    if not ends:
        raise InvalidRequest(f"{param}.end is empty: one text, or a list of some", param=f"{param}.end")
    return Tagged(begin, structure_of(asked.content, f"{param}.content", depth), tuple(dict.fromkeys(ends)))


def _tags(raws: list[Raw], param: str, depth: int) -> tuple[Tagged, ...]:
    tags = []
    for index, raw in enumerate(raws):
        place = f"{param}.tags[{index}]"
        kind = decode_field(raw, _KIND, place).type
        if kind != "tag":
            raise InvalidRequest(f"{place}.type is {kind[:80]!r}; allowed is tag", param=f"{place}.type")
        tags.append(_tag(raw, place, depth))
    return tuple(tags)


def _triggered_tags(raw: Raw | bytes, param: str, depth: int) -> Element:
    asked = _fields(raw, _TriggeredTags, param)
    tags = _tags(asked.tags, param, depth)
    for index, tag in enumerate(tags):
        if sum(tag.begin.startswith(trigger) for trigger in set(asked.triggers)) != 1:
            place = f"{param}.tags[{index}].begin"
            raise InvalidRequest(f"{place} has to begin with exactly one of {param}.triggers", param=place)
    triggers = tuple(dict.fromkeys(asked.triggers))
    return TriggeredTags(triggers, tags, asked.at_least_one, asked.stop_after_first, tuple(asked.excludes))


def _tags_with_separator(raw: Raw | bytes, param: str, depth: int) -> Element:
    asked = _fields(raw, _SeparatedTags, param)
    tags = _tags(asked.tags, param, depth)
    return SeparatedTags(tags, asked.separator, asked.at_least_one, asked.stop_after_first)


_KINDS: dict[str, Callable[[Raw | bytes, str, int], Element]] = {
    "const_string": _const_string,
    "json_schema": _json_schema,
    "regex": _regex,
    "grammar": _grammar,
    "any_text": _any_text,
    "sequence": lambda raw, param, depth: InOrder(_elements(raw, param, depth)),
    "or": lambda raw, param, depth: OneOf(_elements(raw, param, depth)),
    "optional": lambda raw, param, depth: _repeated(raw, param, depth, 0, 1),
    "star": lambda raw, param, depth: _repeated(raw, param, depth, 0, None),
    "plus": lambda raw, param, depth: _repeated(raw, param, depth, 1, None),
    "repeat": _repeat,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
}
STRUCTURE_KINDS = tuple(_KINDS)
