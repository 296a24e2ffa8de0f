"""The keywords of JSON Schema, drafts 4 to 2020-12: what their values have to look like, and where schemas stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeGuard

from .json_text import JsonValue

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

IN_VALUE = (
    "additionalProperties",
    "additionalItems",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""The value is a schema."""
IN_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
IN_MAP = ("properties", "patternProperties", "dependentSchemas")
DEFINITIONS = ("$defs", "definitions")
LITERALS = frozenset(("const", "enum", "default", "examples"))
"""What looks like a schema in these is none."""


def is_schema(value: JsonValue) -> TypeGuard[bool | dict[str, JsonValue]]:
    return isinstance(value, bool | dict)


def is_number(value: JsonValue) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: JsonValue) -> bool:
    return is_number(value) and value >= 0 and value == int(value)


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_truth(value: JsonValue) -> bool:
    return isinstance(value, bool)


def _is_texts(value: JsonValue) -> bool:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return False
    return len({str(item) for item in value}) == len(value)


def _is_schemas(value: JsonValue) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(is_schema, value))


def _is_schema_map(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(map(is_schema, value.values()))


def _is_type(value: JsonValue) -> bool:
    return value in TYPES or (_is_texts(value) and value != [] and all(item in TYPES for item in _items(value)))


def _is_items(value: JsonValue) -> bool:
    return is_schema(value) or _is_schemas(value)


def _is_names_of(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(map(_is_texts, value.values()))


def _is_dependencies(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(_is_texts(item) or is_schema(item) for item in value.values())


def _is_list(value: JsonValue) -> bool:
    return isinstance(value, list)


def _is_list_with_something(value: JsonValue) -> bool:
    return isinstance(value, list) and len(value) > 0


def _is_positive(value: JsonValue) -> bool:
    return is_number(value) and value > 0


def _is_bound(value: JsonValue) -> bool:
    return is_number(value) or isinstance(value, bool)  # the truth values of draft 4


def _items(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


Check = Callable[[JsonValue], bool]

SHAPES: dict[str, tuple[str, Check]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), ("an integer from 0", _is_count)),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), ("an integer from 0", _is_count)),
    **dict.fromkeys(("minimum", "maximum"), ("a number", is_number)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), ("a number", _is_bound)),
    **dict.fromkeys(("pattern", "format", "$ref", "$dynamicRef", "$schema", "$id"), ("a string", _is_text)),
    **dict.fromkeys(("$anchor", "title", "description", "$comment"), ("a string", _is_text)),
    **dict.fromkeys(("readOnly", "writeOnly", "deprecated", "uniqueItems"), ("true or false", _is_truth)),
    **dict.fromkeys(IN_VALUE, ("a schema", is_schema)),
    **dict.fromkeys(IN_LIST, ("a list of at least one schema", _is_schemas)),
    **dict.fromkeys((*IN_MAP, *DEFINITIONS), ("an object of schemas", _is_schema_map)),
    "multipleOf": ("a number above 0", _is_positive),
    "required": ("a list of different strings", _is_texts),
    "type": (f"one or several of {', '.join(TYPES)}", _is_type),
    "items": ("a schema, or a list of them", _is_items),
    "enum": ("a list of at least one value", _is_list_with_something),
    "examples": ("a list", _is_list),
    "dependentRequired": ("an object of lists of different strings", _is_names_of),
    "dependencies": ("an object of schemas or lists of strings", _is_dependencies),
}
"""Keyword -> what its value has to be, in words and as a check."""

_ALLOWS_ALL: tuple[JsonValue, ...] = (True, {})

WITHOUT_EFFECT: dict[str, Check] = {
    "uniqueItems": lambda value: value is False,
    "dependentRequired": lambda value: isinstance(value, dict) and not any(value.values()),
    "dependentSchemas": lambda value: isinstance(value, dict) and all(item in _ALLOWS_ALL for item in value.values()),
    "dependencies": lambda value: isinstance(value, dict) and all(item in (True, {}, []) for item in value.values()),
    "propertyNames": lambda value: value in _ALLOWS_ALL,
    "unevaluatedItems": lambda value: value in _ALLOWS_ALL,
    "unevaluatedProperties": lambda value: value in _ALLOWS_ALL,
    "contentSchema": lambda value: True,
    "deprecated": lambda value: True,
    "$vocabulary": lambda value: True,
    "not": lambda value: value is False,
}
"""Keyword -> whether with this value it says nothing; then it is left out."""

_POINTER_ESCAPES = re.compile(r"[~/]")


def subschemas(schema: dict[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    """Those that stand in it directly, definitions left out, with their places as pieces of a JSON pointer."""
    for keyword in IN_VALUE:
        if keyword in schema:
            yield f"/{keyword}", schema[keyword]
    items = schema.get("items")
    if isinstance(items, bool | dict):
        yield "/items", items
    for keyword in (*IN_LIST, "items"):
        for index, item in enumerate(_items(schema.get(keyword))):
            yield f"/{keyword}/{index}", item
    for keyword in IN_MAP:
        yield from in_map(keyword, schema.get(keyword))


def in_map(keyword: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"/{keyword}/{escaped(name)}", item


def escaped(name: str) -> str:
    """A name as it stands in a JSON pointer."""
    return _POINTER_ESCAPES.sub(lambda found: "~0" if found[0] == "~" else "~1", name)
