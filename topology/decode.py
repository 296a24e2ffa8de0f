"""From the tables of a topology file to `Topology`, strictly: every fault is found, and each names itself, its place,
what it got, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from ..errors import ConfigError
from .describe import allowed_values, field_types, list_section_type, nearest, section_type
from .schema import Topology

MAX_SHOWN_CHARACTERS = 60
ADVICE_FOR_MANY = "correct them all; `callboard topology check FILE` looks without starting"

Origins = Mapping[tuple[str, ...], str]
"""Path of a field -> where its value comes from, for fields that do not come from the file."""

_Fault = tuple[str, str]
"""(what is wrong and where, what to do or what is allowed)"""


def decode_topology(tables: Mapping[str, object], place: str, origins: Origins | None = None) -> Topology:
    """Check `tables` (as TOML gives them, read from `place`) field by field and build the topology.

    Raises ConfigError with all faults, one a line.
    """
    faults: list[_Fault] = []
    _check_struct(tables, Topology, (), place, origins or {}, faults)
    if not faults:
        try:
            return msgspec.convert(tables, Topology)
        except msgspec.ValidationError as error:  # a rule that only the whole struct shows
            faults.append((f"{place}: {error}", "correct the file"))
    if len(faults) == 1:
        raise ConfigError(faults[0][0], advice=faults[0][1])
    lines = "\n".join(f"  {cause}; {advice}" for cause, advice in faults)
    raise ConfigError(f"{len(faults)} faults:\n{lines}", advice=ADVICE_FOR_MANY)


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


def section_title(path: tuple[str, ...]) -> str:
    """`[scheduler]`, `[[process]] "worker"`, or the top of the file."""
    if not path:
        return "top level"
    if path[0] == "process" and len(path) > 1:
        return f"[[process]] {path[1]}" + "".join(f", {name}" for name in path[2:])
    return f"[{'.'.join(path)}]"


def _check_struct(
    table: Mapping[str, object],
    struct: type[msgspec.Struct],
    path: tuple[str, ...],
    place: str,
    origins: Origins,
    faults: list[_Fault],
) -> None:
    known = field_types(struct)
    for name in table:
        if name not in known:
            what = "section" if not path else "field"
            faults.append((f'{place}, {section_title(path)}: unknown {what} "{name}"', nearest(name, known)))
    for field in msgspec.structs.fields(struct):
        if field.name in table:
            _check_field(table[field.name], field.type, (*path, field.name), place, origins, faults)
        elif field.required:
            what = f"[{field.name}] is missing" if not path else f'"{field.name}" is missing'
            advice = f"it must be given ({allowed_values(field.type)})"
            faults.append((f"{place}, {section_title(path)}: {what}", advice))


def _check_field(
    value: object, declared: object, path: tuple[str, ...], place: str, origins: Origins, faults: list[_Fault]
) -> None:
    section, list_section = section_type(declared), list_section_type(declared)
    if section is not None and isinstance(value, Mapping):
        _check_struct(value, section, path, place, origins, faults)
        return
    if list_section is not None and isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            _check_struct(item, list_section, (*path, process_label(item, index)), place, origins, faults)
        return
    try:
        if isinstance(value, float) and not math.isfinite(value):
            raise msgspec.ValidationError("not finite")
        msgspec.convert(value, declared)
    except msgspec.ValidationError:
        where = origins.get(path, place)
        cause = f"{where}, {section_title(path[:-1])}: {path[-1]} = {show_value(value)} is not allowed"
        faults.append((cause, f"allowed is {allowed_values(declared)}"))


def process_label(table: Mapping[str, object], index: int) -> str:
    """How a `[[process]]` table is called in messages: by its name, or by its number from 1."""
    name = table.get("name")
    return f'"{name}"' if isinstance(name, str) else f"number {index + 1}"
