"""From the tables of a topology file to `Topology`, strictly: every fault is found, and each names its place, what it
got, and what is allowed."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import msgspec

from .describe import allowed_values, belongs_to, field_types, list_section_type, nearest, section_type, value_advice
from .problem import Path, Problem, process_label
from .schema import Topology

MAX_SHOWN_CHARACTERS = 60
MAX_NUMBER = 2**53
"""No quantity is larger, and messages, timers and sockets take all up to here in bytes and in nanoseconds."""

_UNKNOWN = "unknown"

Table = dict[str, object]


def decode_topology(tables: Mapping[str, object]) -> tuple[Topology, list[Problem]]:
    """The topology in `tables` (as TOML gives them), field by field, and what is wrong with it.

    Faulty fields are left out of the topology, so that the rest of it can be checked too.
    """
    sound = copy.deepcopy(dict(tables))
    problems: list[Problem] = []
    _check_struct(sound, Topology, (), problems)
    _complete(sound)
    return msgspec.convert(sound, Topology), problems


def _complete(sound: Table) -> None:
    """Fill in, or leave out, what lacks a field that it must have: that was told."""
    model = sound.setdefault("model", {})
    assert isinstance(model, dict)
    model.setdefault("source", "")
    for name, declared in field_types(Topology).items():
        struct, is_list = section_type(declared) or list_section_type(declared), list_section_type(declared)
        tables = sound.get(name, ())
        assert struct is not None
        for table in tables if is_list and isinstance(tables, list) else [tables]:
            if (
                isinstance(table, dict)
                and name in sound
                and any(f.required and f.name not in table for f in msgspec.structs.fields(struct))
            ):
                del sound[name]


def is_independent(problem: Problem, faults: Sequence[Problem]) -> bool:
    """Whether `problem`, found in what `decode_topology` left of a topology, is one whatever the faults hide.

    An unknown field may be meant for any in its section that has a part in the problem.
    """
    involved = {problem.path, *problem.depends_on}
    sections = {path[:-1] for path in problem.depends_on}
    for fault in faults:
        is_of_actors = fault.path[:1] == ("process",) and (len(fault.path) < 3 or fault.path[2] == "actors")
        is_unknown = fault.got.startswith(_UNKNOWN) and fault.path[:-1] in sections
        is_involved = any(path[: len(fault.path)] == fault.path for path in involved)
        if is_involved or is_unknown or (is_of_actors and problem.path == ("process",)):
            return False
    return True


def show_value(value: object) -> str:
    """`value` as TOML writes it, cut if it is long."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    elif isinstance(value, Mapping):
        text = "{ " + ", ".join(f"{key} = {show_value(item)}" for key, item in value.items()) + " }"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(show_value(item) for item in value) + "]"
    else:
        text = str(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"


def _check_struct(table: Table, struct: type[msgspec.Struct], path: Path, problems: list[Problem]) -> None:
    """Append what is wrong with `table`, and take it out."""
    known = field_types(struct)
    for name in [name for name in table if name not in known]:
        del table[name]
        what = "field" if path else "section"
        advice = belongs_to(name) if what == "field" and struct is not Topology else ""
        problems.append(
            Problem(
                (*path, name),
                f'{_UNKNOWN} {what} "{name}"',
                ", ".join(known),
                nearest(name, known) or advice or "remove it",
            )
        )
    for field in msgspec.structs.fields(struct):
        if field.name in table:
            if not _check_field(table[field.name], field, (*path, field.name), problems):
                del table[field.name]
        elif field.required:
            what = f'"{field.name}" is missing' if path else f"[{field.name}] is missing"
            allowed = allowed_values(field.type)
            problems.append(Problem((*path, field.name), what, allowed, "it has no default: give it"))


def _check_field(value: object, field: msgspec.structs.FieldInfo, path: Path, problems: list[Problem]) -> bool:
    """Whether there is something left of it."""
    section, list_section = section_type(field.type), list_section_type(field.type)
    if section is not None and isinstance(value, dict):
        _check_struct(value, section, path, problems)
        return True
    if list_section is not None and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            _check_struct(item, list_section, (*path, process_label(item, index)), problems)
        return True
    allowed = allowed_values(field.type)
    try:
        if isinstance(value, float) and not math.isfinite(value):
            raise msgspec.ValidationError("not finite")
        msgspec.convert(value, field.type)
        if isinstance(value, int | float) and value > MAX_NUMBER:
            allowed = f"a number of at most {MAX_NUMBER:,}"
            raise msgspec.ValidationError("too large")
        return True
    except msgspec.ValidationError:
        got = f"{path[-1]} = {show_value(value)}"
        problems.append(Problem(path, got, allowed, value_advice(value, field)))
        return False
