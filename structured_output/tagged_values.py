"""The arguments of a call as tagged values: a pair of tags for each property, in the schema's order.

A value of type string stands there as it is, up to the closing tag; all others as JSON.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from ..errors import GrammarRefused
from .json_text import JsonValue, json_rule
from .lark_text import ANYTHING, either, literal, without
from .schema_keywords import DEFINITIONS, LITERALS, SHAPES

Style = Literal["qwen_xml", "glm_xml"]
Schema = dict[str, JsonValue]

_MAX_REFERENCES = 16
_NOT_HERE = ("patternProperties", "minProperties", "maxProperties", "anyOf", "oneOf", "allOf", "enum", "const", "$ref")
_OF_STRINGS = ("minLength", "maxLength", "pattern", "format")
_ANNOTATIONS = ("title", "description", "default", "examples", "$comment", "readOnly", "writeOnly", "$anchor", "$id")
_FORMATS = {
    "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "time": r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([zZ]|[+-][0-9]{2}:[0-9]{2})",
    "date-time": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[tT][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([zZ]|[+-][0-9]{2}:[0-9]{2})",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""A date's day is held to the calendar by the patterns that `schema_formats` adds."""


class _Tags(msgspec.Struct, frozen=True):
    before: str
    """`{}` is the property's name."""
    close: str
    """No string holds it."""
    after: str


_STYLES: dict[Style, _Tags] = {
    "qwen_xml": _Tags("<parameter={}>\n", "\n</parameter>", "\n"),
    "glm_xml": _Tags("<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>", "\n"),
}


def tagged_body(schema: JsonValue, style: Style, name: str) -> tuple[str, list[str]]:
    """A rule's body and the rules that it needs, whose names begin with `name`, for an object of a checked schema.

    Raises GrammarRefused for what cannot be written so.
    """
    return _Body(schema if isinstance(schema, dict) else {}, _STYLES[style], name).rules()


class _Body:
    def __init__(self, root: Schema, tags: _Tags, name: str) -> None:
        self._root = root
        self._tags = tags
        self._name = name
        self._rules: list[str] = []

    def rules(self) -> tuple[str, list[str]]:
        schema = self._resolved(self._root)
        if schema.get("type", "object") not in ("object", ["object"]):
            raise GrammarRefused("arguments in tags have to be of type object")
        for keyword in _NOT_HERE:
            if keyword in schema:
                raise GrammarRefused(f"{keyword} is not supported of arguments in tags, only of their values")
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        assert isinstance(properties, dict) and isinstance(required, list), "the schema has been checked"
        for name in required:
            if name not in properties:
                raise GrammarRefused(f"required names {name!r}, which is not in properties")
        return " ".join(self._pair(name, value, name in required) for name, value in properties.items()), self._rules

    def _pair(self, name: str, schema: JsonValue, is_required: bool) -> str:
        if re.search(r"[<>\n]", name):
            raise GrammarRefused(f"the property {name[:100]!r} cannot be named in tags")
        before, after = literal(self._tags.before.format(name)), literal(self._tags.after)
        pair = f"{before} {self._value(name, schema)} {after}"
        return pair if is_required else f"({pair})?"

    def _value(self, name: str, schema: JsonValue) -> str:
        """The value and its closing tag."""
        kinds = self._alternatives(name, schema, 0)
        strings = [kind for kind in kinds if _is_string(kind)]
        others: list[JsonValue] = [kind for kind in kinds if not _is_string(kind)]
        if any(_is_any_string(kind) for kind in strings):
            return self._string({}, name)
        written = [self._string(kind, name) for kind in strings]
        if others:
            definitions = {keyword: self._root[keyword] for keyword in DEFINITIONS if keyword in self._root}
            written.append(f"{json_rule({**definitions, 'anyOf': others})} {literal(self._tags.close)}")
        return either(written)

    def _alternatives(self, name: str, schema: JsonValue, depth: int) -> list[Schema]:
        """Schemas of one type each, one of which the value fulfils."""
        if depth > _MAX_REFERENCES:
            raise GrammarRefused(f"the property {name[:100]!r}: its type refers to itself")
        if schema is True:
            return [{"type": "string"}]
        assert isinstance(schema, dict), "false stands in no checked schema that something requires"
        schema = self._resolved(schema)
        said = [key for key in schema if key not in _ANNOTATIONS and (key in SHAPES or key in LITERALS)]
        for keyword in ("anyOf", "oneOf", "allOf"):
            options = schema.get(keyword)
            if said == [keyword] and isinstance(options, list) and (keyword != "allOf" or len(options) == 1):
                return [kind for option in options for kind in self._alternatives(name, option, depth + 1)]
        types = schema.get("type")
        if isinstance(types, list):
            return [{**schema, "type": kind} for kind in types]
        if types is None and not said:
            return [{"type": "string"}]  # whatever it is, its text is one
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if types is None and isinstance(values, list) and values:
            return [{**schema, "enum": [value], "type": _type_of(value)} for value in values]
        return [schema]

    def _resolved(self, schema: Schema) -> Schema:
        for _ in range(_MAX_REFERENCES):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            target: JsonValue = self._root
            for piece in reference.removeprefix("#").split("/")[1:]:
                target = target.get(piece.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
            if not isinstance(target, dict) or not reference.startswith("#"):
                raise GrammarRefused(f"$ref {reference[:100]!r} is not supported of arguments in tags")
            schema = target
        raise GrammarRefused("a $ref that refers to itself")

    def _string(self, schema: Schema, name: str) -> str:
        """A rule for a string as it is, with the closing tag."""
        number = len(self._rules)
        terminal, rule = f"{self._name}_text_{number}".upper(), f"{self._name}_value_{number}"
        self._rules.append(f"{terminal}: {self._string_terminal(schema, name)}")
        self._rules.append(f"{rule}[lazy]: {terminal} {literal(self._tags.close)}")
        return rule

    def _string_terminal(self, schema: Schema, name: str) -> str:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list):
            texts = [value for value in values if isinstance(value, str)]
            if any(keyword in schema for keyword in _OF_STRINGS) or "" in texts:
                raise GrammarRefused(f"the property {name[:100]!r}: enum with other keywords, or with an empty text")
            return either(literal(text) for text in texts)
        terms = [without([self._tags.close])]
        further = schema.get("allOf", [])
        for part in (schema, *(further if isinstance(further, list) else [])):
            terms += self._terms(part, name)
        return " & ".join(terms)

    def _terms(self, schema: JsonValue, name: str) -> list[str]:
        if not isinstance(schema, dict) or not {*schema} <= {*_OF_STRINGS, *_ANNOTATIONS, "type", "allOf"}:
            raise GrammarRefused(f"the property {name[:100]!r}: what is said of the string is not supported in tags")
        terms = []
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        if least or most != "":
            terms.append(f"/(?s:.{{{least},{most}}})/")
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            terms.append(_search(pattern, name))
        form = schema.get("format")
        if isinstance(form, str):
            if form not in _FORMATS:
                raise GrammarRefused(f"the property {name[:100]!r}: format {form[:100]!r} is not supported in tags")
            terms.append(f"/{_FORMATS[form]}/")
        return terms


def _search(pattern: str, name: str) -> str:
    """A text in which a rewritten expression is found."""
    begins, ends = pattern.startswith("^"), bool(re.search(r"(?<!\\)(?:\\\\)*\$$", pattern))
    body = pattern[begins : len(pattern) - ends]
    bare = re.sub(r"\\.|\[(?:[^\]\\]|\\.)*\]", "", body)  # without escapes and classes
    if re.search(r"[\^$]", bare) or ((begins or ends) and _has_outer_choice(bare)):
        raise GrammarRefused(f"the property {name[:100]!r}: a pattern with such anchors is not supported in tags")
    return f"({'' if begins else ANYTHING} /(?:{body})/ {'' if ends else ANYTHING})"


def _has_outer_choice(bare: str) -> bool:
    """Whether there are alternatives outside of all brackets."""
    depth = 0
    for character in bare:
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            return True
    return False


def _is_string(schema: Schema) -> bool:
    return schema.get("type") == "string"


def _is_any_string(schema: Schema) -> bool:
    return not any(key in schema for key in (*_OF_STRINGS, "enum", "const", "allOf", "anyOf", "oneOf"))


def _type_of(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
