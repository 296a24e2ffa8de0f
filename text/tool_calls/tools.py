"""A tool as the parser and the grammar need it, and the JSON types that its schema allows for a parameter."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

NO_PARAMETERS = b'{"type":"object","properties":{},"additionalProperties":false}'

JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
MAX_REFERENCES = 16
"""Schemas within schemas that are looked into for a parameter's types; deeper ones allow anything."""

Schema = Mapping[str, object]


class Tool(msgspec.Struct, frozen=True):
    """A function that a model may call: `parameters` is the JSON text of its schema, an object's."""

    name: str
    parameters: bytes = NO_PARAMETERS


def parameter_types(tool: Tool) -> dict[str, frozenset[str]]:
    """The JSON types that each parameter may have; all of them where the schema says nothing that is understood."""
    try:
        schema = msgspec.json.decode(tool.parameters, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return {}
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: _types(value, schema, 0) for name, value in properties.items() if isinstance(value, dict)}


def _types(schema: Schema, root: Schema, depth: int) -> frozenset[str]:
    """The union of what `type`, `enum`, `const`, `anyOf`, `oneOf` and a local `$ref` name."""
    if depth > MAX_REFERENCES:
        return JSON_TYPES
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named}) & JSON_TYPES or JSON_TYPES
    if isinstance(named, list):
        return frozenset(one for one in named if isinstance(one, str)) & JSON_TYPES or JSON_TYPES
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset(type_of(value) for value in values)
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches and all(isinstance(branch, dict) for branch in branches):
            found = [_types(branch, root, depth + 1) for branch in branches]
            return frozenset.intersection(*found) or JSON_TYPES if key == "allOf" else frozenset().union(*found)
    reference = schema.get("$ref")
    target = _resolve(reference, root) if isinstance(reference, str) else None
    return JSON_TYPES if target is None else _types(target, root, depth + 1)


def _resolve(reference: str, root: Schema) -> Schema | None:
    """The schema at a local JSON pointer such as `#/$defs/Color`; None if there is none."""
    if not reference.startswith("#/"):
        return None
    place: object = root
    for part in reference[2:].split("/"):
        if not isinstance(place, Mapping):
            return None
        place = place.get(part.replace("~1", "/").replace("~0", "~"))
    return place if isinstance(place, Mapping) else None


def type_of(value: object) -> str:
    """The JSON type of a decoded value; of a whole number "integer"."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
