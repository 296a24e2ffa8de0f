"""The line of each field in a topology file: `tomllib` tells none, so statements are parsed once more, one by one."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping

from .problem import Path, process_label

_MAX_STATEMENT_LINES = 200
"""Of one value, such as an array over several lines; behind a longer one no line is known."""


def field_lines(text: str) -> dict[Path, int]:
    """Path -> line (from 1) of every section and field of a file that `tomllib` can read."""
    found: dict[Path, int] = {}
    names: dict[str, object] = {}
    section: Path = ()
    num_processes = 0
    for line, statement, table in _statements(text):
        leaves = list(_leaves(table))
        if statement.lstrip().startswith("["):
            (section, _), *_ = leaves
            if section[0] == "process":
                num_processes += len(section) == 1
                section = ("process", str(num_processes - 1), *section[1:])
            leaves = [((), None)]
        for inner, value in leaves:
            path = (*section, *inner)
            for length in range(1, len(path) + 1):
                found.setdefault(path[:length], line)
            if path[0] == "process" and path[2:] == ("name",):
                names[path[1]] = value
    return {_labelled(path, names): line for path, line in found.items()}


def _statements(text: str) -> Iterator[tuple[int, str, Mapping[str, object]]]:
    """(first line, text, what it says alone) of each header and each `key = value`."""
    pending: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        pending.append(line)
        try:
            table = tomllib.loads("\n".join(pending))
        except tomllib.TOMLDecodeError:  # the value goes on in the next line
            if len(pending) == _MAX_STATEMENT_LINES:
                return
            continue
        if table:
            yield number - len(pending) + 1, "\n".join(pending), table
        pending = []


def _leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Paths of the values in nested tables, and of empty tables; tables in an array go by their number from 0."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value) and value != [{}]:
        value = {str(index): item for index, item in enumerate(value)}
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield path, value


def _labelled(path: Path, names: Mapping[str, object]) -> Path:
    """`("process", "0", "device")` with the process's label for its number."""
    if path[0] != "process" or len(path) == 1:
        return path
    return ("process", process_label({"name": names.get(path[1])}, int(path[1])), *path[2:])
