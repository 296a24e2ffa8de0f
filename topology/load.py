"""Reading a topology: from a file, or from MODEL alone, with `section.key=value` overrides on top."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..errors import ConfigError
from .decode import Table, decode_topology
from .defaults import default_tables
from .describe import field_types, is_text, list_section_type, nearest, section_type
from .lines import field_lines
from .problem import Path, Places, Problem, process_label
from .schema import ModelSection, Topology

Overrides = Mapping[str, str] | Iterable[str]
"""`{"section.key": "value"}` or `["section.key=value"]`; values are TOML, a bare word is a string."""

MAX_FILE_BYTES = 256 * 1024
"""Of a topology file; a large one has some KiB."""
ADVICE_FOR_MANY = "correct them all; `callboard topology check FILE` looks without starting"


class Reading(msgspec.Struct, frozen=True):
    """What a file, or MODEL with overrides, says."""

    topology: Topology
    """Without the fields that are faulty."""
    problems: tuple[Problem, ...]
    places: Places


def read_topology(path: str | os.PathLike[str], overrides: Overrides = (), *, source: str | None = None) -> Reading:
    """The TOML file at `path`; `source`, if given, replaces the file's `[model] source`.

    Raises ConfigError for a file that is no TOML (with line and column) and for overrides that name no field.
    """
    place = os.fspath(path)
    text = _read_text(place)
    try:
        tables: Table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"the topology file {place!r} is not valid TOML: {error}", advice="correct the syntax at that place"
        ) from error
    if source is not None:
        model = tables.setdefault("model", {})
        if isinstance(model, dict):
            model["source"] = source
    origins = _apply(tables, overrides)
    topology, problems = decode_topology(tables)
    return Reading(topology, tuple(problems), Places(place, field_lines(text), origins))


def load_topology(path: str | os.PathLike[str], overrides: Overrides = (), *, source: str | None = None) -> Topology:
    """As `read_topology`, and raises ConfigError with all that is wrong with the fields."""
    return _sound(read_topology(path, overrides, source=source))


def topology_from(source: str, overrides: Overrides = (), *, device: str = "cpu") -> Topology:
    """The default topology for MODEL `source` on a device (`find_device`). Raises ConfigError for bad overrides."""
    tables = default_tables(source, device)
    origins = _apply(tables, overrides)
    topology, problems = decode_topology(tables)
    return _sound(Reading(topology, tuple(problems), Places("", {}, origins)))


def raise_problems(problems: Sequence[Problem], places: Places) -> None:
    """ConfigError with all of them, one a line, if there are any."""
    if len(problems) == 1:
        raise ConfigError(places.fault(problems[0]), advice=problems[0].advice)
    if problems:
        lines = "\n".join(f"  {places.sentence(problem)}" for problem in problems)
        raise ConfigError(f"{len(problems)} problems in the topology:\n{lines}", advice=ADVICE_FOR_MANY)


def _sound(reading: Reading) -> Topology:
    raise_problems(reading.problems, reading.places)
    return reading.topology


def _read_text(place: str) -> str:
    try:
        with open(place, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read the topology file {place!r}: {error.strerror}",
            advice="give the path of a TOML file; the repository's examples/ folder has some",
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            f"the topology file {place!r} has more than {MAX_FILE_BYTES:,} bytes",
            advice="give the topology's path; a model's path goes to [model] source",
        )
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")  # with the mark that some editors put in front
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the topology file {place!r} is not UTF-8 text: {error}", advice="save it as UTF-8"
        ) from error


def _apply(tables: Table, overrides: Overrides) -> dict[Path, str]:
    origins: dict[Path, str] = {}
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


def _set(tables: Table, key: str, text: str) -> Path:
    """Put one override into `tables`; returns the path under which a fault of it is found."""
    where = f"--set {key}={text}"
    names = key.split(".")
    sections = field_types(Topology)
    if len(names) < 2:
        raise ConfigError(f"{where}: {key!r} names no field", advice="the form is section.key=value")
    if names[0] not in sections:
        raise ConfigError(f'{where}: unknown section "{names[0]}"', advice=_known(names[0], sections))
    struct = section_type(sections[names[0]])
    path: Path = (names[0],)
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
            raise ConfigError(f'{where}: unknown field "{rest[0]}" in {names[0]}', advice=_known(rest[0], known))
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


def _process_table(tables: Table, names: list[str], where: str) -> tuple[Table, Path]:
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
    raise ConfigError(f'{where}: no process is named "{names[1]}"', advice=_known(names[1], known))


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


def _known(name: str, known: Iterable[str]) -> str:
    known = list(known)
    return nearest(name, known) or "known are " + ", ".join(known)
