"""A topology as the text of a topology file, and overrides given from Python."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from ..topology import Topology


def topology_text(topology: Topology) -> str:
    """TOML that reads as `topology` again."""
    lines: list[str] = []
    for name, section in msgspec.to_builtins(topology).items():
        tables = section if isinstance(section, list | tuple) else [section]
        header = f"[[{name}]]" if isinstance(section, list | tuple) else f"[{name}]"
        for table in tables:
            if table is None:
                continue
            lines.append(header)
            lines += [f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def override_texts(overrides: Mapping[str, object]) -> dict[str, str]:
    """Values as they are written behind `--set KEY=`: text as it is, everything else as TOML."""
    return {key: value if isinstance(value, str) else toml_value(value) for key, value in overrides.items()}


def toml_value(value: object) -> str:
    """On one line. Raises TypeError for what a topology cannot hold."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():  # a JSON string is a TOML one, but for one control character
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            items = (f"{toml_value(str(key))} = {toml_value(item)}" for key, item in value.items() if item is not None)
            return "{ " + ", ".join(items) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} is no value of a topology")
