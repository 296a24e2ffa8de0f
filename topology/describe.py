"""The fields of the schema in words: which exist, and what values each allows."""

from __future__ import annotations

import difflib
import re
import types
import typing
from typing import Annotated, Literal, Union, get_args, get_origin

import msgspec

from .schema import Topology

_WORDS = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}


def field_types(struct: type[msgspec.Struct]) -> dict[str, object]:
    """Name -> declared type of each field, in order."""
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def without_none(declared: object) -> object:
    """The type beside None of an optional field, else `declared`."""
    if get_origin(declared) in (Union, types.UnionType):
        rest = [part for part in get_args(declared) if part is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return declared


def section_type(declared: object) -> type[msgspec.Struct] | None:
    """The struct of a field that is a TOML table, None for a plain value or a list."""
    inner = without_none(declared)
    return inner if isinstance(inner, type) and issubclass(inner, msgspec.Struct) else None


def list_section_type(declared: object) -> type[msgspec.Struct] | None:
    """The struct of a field that is an array of TOML tables, else None."""
    if get_origin(declared) is tuple:
        return section_type(get_args(declared)[0])
    return None


def is_text(declared: object) -> bool:
    """True if the field holds a string, whichever strings it allows."""
    inner = without_none(declared)
    if get_origin(inner) is Annotated:
        inner = get_args(inner)[0]
    return inner is str or (get_origin(inner) is Literal and all(isinstance(arg, str) for arg in get_args(inner)))


def allowed_values(declared: object) -> str:
    """What a field of type `declared` allows, in words: `an integer of at least 1`."""
    inner = without_none(declared)
    if get_origin(inner) is Annotated:
        base, *extras = get_args(inner)
        return _WORDS[base] + _limits([extra for extra in extras if isinstance(extra, msgspec.Meta)])
    if get_origin(inner) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(inner))
    if get_origin(inner) is tuple:
        return "an array of tables (written in double brackets)" if list_section_type(inner) else "an array of strings"
    if section_type(inner) is not None:
        return "a table"
    return _WORDS[typing.cast(type, inner)]


def _limits(metas: list[msgspec.Meta]) -> str:
    words = []
    for meta in metas:
        for limit, phrase in ((meta.ge, "of at least"), (meta.gt, "above"), (meta.le, "at most"), (meta.lt, "below")):
            if limit is not None:
                # 1.0 and 1 alike: equal annotations are one object to `typing`, whichever was made first
                whole = int(limit) if limit == int(limit) else limit
                words.append(f"{phrase} {whole:,}")
    return " " + " and ".join(words) if words else ""


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """`did you mean "X"?` for the known name most like `name`, empty if none is."""
    spelled = name.lower().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(spelled, list(known), n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else ""


def belongs_to(name: str) -> str:
    """`it belongs to [scheduler]` for a field of another section, else empty."""
    for section, declared in field_types(Topology).items():
        struct = section_type(declared) or list_section_type(declared)
        if struct is not None and name in field_types(struct):
            return f"it belongs to [[{section}]]" if list_section_type(declared) else f"it belongs to [{section}]"
    return ""


def value_advice(value: object, field: msgspec.structs.FieldInfo) -> str:
    """What to do about a value of the wrong type or outside the limits."""
    inner = without_none(field.type)
    if list_section_type(inner) is not None and isinstance(value, dict):
        return f"write [[{field.name}]] for [{field.name}]"
    if section_type(inner) is not None:
        return f"write [{field.name}] above its fields, or {field.name} = {{ ... }}"
    if isinstance(value, str):
        choices = get_args(inner) if get_origin(inner) is Literal else ()
        if choices:
            return nearest(value, choices) or _NAMES_ELSEWHERE.get(value.lower(), "") or _leave_out(field)
        if re.fullmatch(r"[+-]?[\d_.]+|true|false", value.strip()):
            return f"write {value.strip()} without quotes"
    if isinstance(value, float) and value.is_integer():
        return f"write {value:.0f}"
    if isinstance(value, int | float) and is_text(inner):
        return f'write "{value}" in quotes'
    return _leave_out(field)


_NAMES_ELSEWHERE = {
    "bf16": 'write "bfloat16"',
    "fp32": 'write "float32"',
    "f32": 'write "float32"',
    "float": 'write "float32"',
}


def _leave_out(field: msgspec.structs.FieldInfo) -> str:
    if isinstance(field.default, str | int | float) and not isinstance(field.default, bool):
        return f"leave it out for the default, {field.default}"
    return "correct it" if field.required else "correct it, or leave it out"
