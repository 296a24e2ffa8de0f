"""Which schemas have a value at all: one that requires itself has none, only an answer that never ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import GrammarRefused
from .json_text import JsonValue
from .schema_keywords import TYPES, is_number

_MAX_ROUNDS = 200
"""A longer chain of references counts as having a value."""


def close_endless(
    root: dict[str, JsonValue], schemas: Sequence[dict[str, JsonValue]], targets: Mapping[int, JsonValue]
) -> None:
    """Make `{"enum": []}` of every schema that has no finite value; of `schemas`, all that the root leads to.

    targets: what the `$ref` of a schema refers to, by the identity of the schema. A schema is only closed where that
    is certain. Raises GrammarRefused if the root is one.
    """
    finite: set[int] = set()
    waiting = list(reversed(schemas))
    for _ in range(_MAX_ROUNDS):
        endless = []
        for schema in waiting:
            if _has_value(schema, finite, targets):
                finite.add(id(schema))
            else:
                endless.append(schema)
        if len(endless) == len(waiting):
            break
        waiting = endless
    else:
        return
    if any(schema is root for schema in waiting):
        raise GrammarRefused("the schema cannot be satisfied: what it requires contains itself, or allows nothing")
    for schema in waiting:
        schema.clear()
        schema["enum"] = []


def _has_value(schema: dict[str, JsonValue], finite: set[int], targets: Mapping[int, JsonValue]) -> bool:
    def is_finite(part: JsonValue) -> bool:
        return part is True or id(part) in finite

    if id(schema) in targets and not is_finite(targets[id(schema)]):
        return False
    if not all(map(is_finite, _list(schema.get("allOf")))):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(map(is_finite, _list(schema[keyword]))):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type", list(TYPES))
    for kind in types if isinstance(types, list) else [types]:
        if kind == "object":
            needed = _required(schema)
        elif kind == "array":
            needed = _first_items(schema)
        else:
            return True
        if all(map(is_finite, needed)):
            return True
    return False


def _required(schema: dict[str, JsonValue]) -> list[JsonValue]:
    properties = schema.get("properties")
    named = properties if isinstance(properties, dict) else {}
    others: JsonValue = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    return [named.get(str(name), others) for name in _list(schema.get("required"))]


def _first_items(schema: dict[str, JsonValue]) -> list[JsonValue]:
    least = schema.get("minItems", 0)
    items = schema.get("items", True)
    first = items if isinstance(items, list) else _list(schema.get("prefixItems"))
    others = schema.get("additionalItems", True) if isinstance(items, list) else items
    if not is_number(least):
        return []
    num_needed = int(least)
    return [*first[:num_needed], *([others] if num_needed > len(first) else [])]


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
