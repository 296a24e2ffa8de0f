"""Reading a topology: from a file, or from MODEL alone, with `section.key=value` overrides on top."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping

import msgspec

from ..errors import ConfigError
from .decode import Origins, decode_topology, process_label
from .describe import field_types, is_text, list_section_type, nearest, section_type
from .schema import ModelSection, Topology

Overrides = Mapping[str, str] | Iterable[str]
"""`{"section.key": "value"}` or `["section.key=value"]`; values are TOML, a bare word is a string."""

Table = dict[str, object]


def load_topology(path: str | os.PathLike[str], overrides: Overrides = (), *, source: str | None = None) -> Topology:
    """The topology in the TOML file at `path`; `source`, if given, replaces the file's `[model] source`.

    Raises ConfigError: unreadable file, TOML syntax (with the line), unknown fields, bad values.
    """
    place = os.fspath(path)
    try:
        with open(path, "rb") as file:
            tables: Table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"cannot read the topology file {place!r}: {error.strerror}",
            advice="give the path of a TOML file; the repository's examples/ folder has some",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the topology file {place!r} is not UTF-8 text: {error}", advice="save it as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"the topology file {place!r} is not valid TOML: {error}", advice="correct the syntax at that place"
        ) from error
    if source is not None:
        model = tables.setdefault("model", {})
        if isinstance(model, dict):
            model["source"] = source
    return decode_topology(tables, place, _apply(tables, overrides))


def topology_from(source: str, overrides: Overrides = ()) -> Topology:
    """The default topology (control + worker) for MODEL `source`. Raises ConfigError for bad overrides."""
    tables: Table = {"model": {"source": source}}
    return decode_topology(tables, "defaults", _apply(tables, overrides))


def _apply(tables: Table, overrides: Overrides) -> Origins:
    origins: dict[tuple[str, ...], str] = {}
    if isinstance(overrides, Mapping):
        pairs = list(overrides.items())
    else:
        pairs = [_split(override) for override in overrides]
    for key, text in pairs:
        origins[_set(tables, key.strip(), text.strip())] = f"--set {key.strip()}={text.strip()}"
    return origins


def _split(override: str) -> tuple[str, str]:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"--set {override}: no value", advice="the form is section.key=value")
    return key, text


def _set(tables: Table, key: str, text: str) -> tuple[str, ...]:
    """Put one override into `tables`; returns the path under which a fault of it is found."""
    where = f"--set {key}={text}"
    names = key.split(".")
    sections = field_types(Topology)
    if len(names) < 2:
        raise ConfigError(f"{where}: {key!r} names no field", advice="the form is section.key=value")
    if names[0] not in sections:
        raise ConfigError(f'{where}: unknown section "{names[0]}"', advice=nearest(names[0], sections))
    struct = section_type(sections[names[0]])
    path: tuple[str, ...] = (names[0],)
    if struct is not None:
        table = _subtable(tables, names[0], where)
        rest = names[1:]
    else:
        struct = list_section_type(sections[names[0]])
        table, path = _process_table(tables, names, where)
        rest = names[2:]
    while struct is not None and rest:
        known = field_types(struct)
        if rest[0] not in known:
            raise ConfigError(f'{where}: unknown field "{rest[0]}" in {names[0]}', advice=nearest(rest[0], known))
        path = (*path, rest[0])
        declared = known[rest[0]]
        if len(rest) == 1:
            table[rest[0]] = _parse(text, declared)
            return path
        struct = section_type(declared)
        if struct is not None:
            table = _subtable(table, rest[0], where)
        rest = rest[1:]
    raise ConfigError(f"{where}: {key!r} names no field", advice="the form is section.key=value")


def _subtable(tables: Table, name: str, where: str) -> Table:
    table = tables.setdefault(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {name} is not a table in the topology file", advice=f"write [{name}]")
    return table


def _process_table(tables: Table, names: list[str], where: str) -> tuple[Table, tuple[str, ...]]:
    """The `[[process]]` table named in `process.NAME.field`; the default ones if the file has none."""
    if "process" not in tables:
        defaults = Topology(model=ModelSection(source="")).process
        tables["process"] = [msgspec.to_builtins(process) for process in defaults]
    processes = tables["process"]
    if len(names) < 3 or not isinstance(processes, list):
        raise ConfigError(f"{where}: {'.'.join(names)!r} names no field", advice="the form is process.NAME.field=value")
    for index, process in enumerate(processes):
        if isinstance(process, dict) and process.get("name") == names[1]:
            return process, ("process", process_label(process, index))
    known = [str(process.get("name")) for process in processes if isinstance(process, dict)]
    raise ConfigError(f'{where}: no process is named "{names[1]}"', advice=nearest(names[1], known))


def _parse(text: str, declared: object) -> object:
    """`text` as a TOML value; a bare word, or anything unquoted for a field of text, is a string as it stands."""
    try:
        parsed = tomllib.loads(f"value = {text}\n")
    except tomllib.TOMLDecodeError:
        return text
    if parsed.keys() != {"value"}:  # several lines
        return text
    value: object = parsed["value"]
    return text if is_text(declared) and not isinstance(value, str) else value
