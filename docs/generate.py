"""Fills the generated parts of docs/*.md from the code: `python docs/generate.py`. A test says when that is due.

A part stands between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from callboard.server.unsupported_fields import NO_EFFECT, UNSUPPORTED
from callboard.topology import schema
from callboard.topology.describe import allowed_values, field_types, list_section_type, section_type

DOCS = Path(__file__).resolve().parent


def field_notes(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field -> the docstring below it."""
    (tree,) = ast.parse(inspect.getsource(struct)).body
    assert isinstance(tree, ast.ClassDef)
    notes = {}
    for line, below in zip(tree.body, tree.body[1:], strict=False):
        match line, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(note))):
                notes[name] = " ".join(note.split())
    return notes


def parts_of(note: str) -> tuple[str, str, str]:
    """`Size of the pool [blocks]. static` -> ("Size of the pool", "blocks", "static"). Raises ValueError."""
    found = re.fullmatch(r"(.+?)(?: \[([a-z/]+)\])?\. (static|live)", note)
    if found is None:
        raise ValueError(f"no meaning and no static or live in {note!r}")
    return found[1], found[2] or "", found[3]


def table_of(struct: type[msgspec.Struct]) -> str:
    """One section of the topology: field, allowed values, unit, default, static or live, meaning."""
    notes = field_notes(struct)
    rows = ["| field | allowed | unit | default | | meaning |", "|---|---|---|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        meaning, unit, kind = parts_of(notes[field.name])
        if field.required:
            default = "required"
        elif isinstance(field.default_factory, type) and issubclass(field.default_factory, msgspec.Struct):
            default = f"`{toml_of(field.default_factory())}`"
        else:
            default = "" if field.default is None else f"`{toml_of(field.default)}`"
        rows.append(f"| `{field.name}` | {allowed_values(field.type)} | {unit} | {default} | {kind} | {meaning} |")
    return "\n".join(rows)


def toml_of(value: object) -> str:
    """`value` as it is written in a topology file."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:_}" if isinstance(value, int) else f"{value}"
        case msgspec.Struct():
            pairs = (f"{name} = {toml_of(getattr(value, name))}" for name in value.__struct_fields__)
            return f"{{ {', '.join(pairs)} }}"
        case _:
            return f'"{value}"'


def topology_fields() -> str:
    """All sections, in the schema's order."""
    parts = []
    for name, declared in field_types(schema.Topology).items():
        struct = section_type(declared) or list_section_type(declared)
        assert struct is not None, f"{name} is no section"
        heading = f"[[{name}]]" if list_section_type(declared) else f"[{name}]"
        parts += [f"### `{heading}`", table_of(struct)]
    parts += ["### `restart` of a process", table_of(schema.RestartPolicy)]
    return "\n\n".join(parts)


def refused_fields() -> str:
    """Field, the values that change nothing, which are accepted, and why no others ever are."""
    rows = ["| field | accepted values | |", "|---|---|---|"]
    for name, field in UNSUPPORTED.items():
        values = (msgspec.json.encode(value).decode() for value in field.neutral)
        rows.append(f"| `{name}` | {', '.join(f'`{value}`' for value in values)} | {field.why_never} |")
    return "\n".join(rows)


def fields_without_effect() -> str:
    return ", ".join(f"`{name}`" for name in sorted(NO_EFFECT))


PARTS: dict[str, Callable[[], str]] = {
    "topology fields": topology_fields,
    "refused fields": refused_fields,
    "fields without effect": fields_without_effect,
}


def filled(page: str) -> str:
    """`page` with its generated parts as the code has them now."""
    for name, part in PARTS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = pattern.sub(lambda found, part=part: f"{found[1]}{part()}\n{found[2]}", page)  # type: ignore[misc]
    return page


def main() -> None:
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if filled(page) != page:
            path.write_text(filled(page), encoding="utf-8")
            print(f"docs/{path.name} is new")


if __name__ == "__main__":
    main()
