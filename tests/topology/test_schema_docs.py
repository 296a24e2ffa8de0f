"""Every field of the schema says what it means, in what unit, and whether it is static or live; so does the page."""

from __future__ import annotations

import importlib.util
import re
import typing
from pathlib import Path

import msgspec
import pytest

from callboard.topology import schema
from callboard.topology.describe import field_types, list_section_type, section_type, without_none

ROOT = Path(__file__).parents[2]
UNITS = {"processes", "tokens", "rows", "steps", "blocks", "bytes", "seconds", "share", "requests", "number"}
UNITS |= {"ranks", "stages", "threads", "restarts", "tokens/s"}
SUFFIXES = {
    "_per_s": "tokens/s",
    "_s": "seconds",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_blocks": "blocks",
}
"""Of names -> the unit that they promise; the first that fits counts."""


def all_sections() -> dict[str, type[msgspec.Struct]]:
    """`[section]` -> struct, nested ones included, found by walking the types."""
    found: dict[str, type[msgspec.Struct]] = {}
    left = [("", schema.Topology)]
    while left:
        name, struct = left.pop(0)
        found[name] = struct
        for field, declared in field_types(struct).items():
            inner = section_type(declared) or list_section_type(declared)
            if inner is not None:
                left.append((f"{name}.{field}".strip("."), inner))
    return found


SECTIONS = all_sections()
FIELDS = [
    pytest.param(struct, field, id=f"{section}.{field.name}")
    for section, struct in SECTIONS.items()
    if section
    for field in msgspec.structs.fields(struct)
]


def is_quantity(declared: object) -> bool:
    inner = without_none(declared)
    if typing.get_origin(inner) is typing.Annotated:
        inner = typing.get_args(inner)[0]
    return inner in (int, float)


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sections_are_all_there():
    assert set(SECTIONS) == {
        "", "model", "scheduler", "kv_cache", "server", "supervision", "structured_output", "speculative", "journal",
        "process", "process.restart",
    }  # fmt: skip
    assert len(FIELDS) > 40


@pytest.mark.parametrize(("struct", "field"), FIELDS)
def test_a_field_says_its_meaning_its_unit_and_when_it_changes(generate, struct, field):
    notes = generate.field_notes(struct)
    assert field.name in notes, "no docstring below the field"
    meaning, unit, _ = generate.parts_of(notes[field.name])
    assert len(meaning) > 5
    assert bool(unit) == is_quantity(field.type)
    assert not unit or unit in UNITS
    promised = [wanted for suffix, wanted in SUFFIXES.items() if field.name.endswith(suffix)]
    assert not promised or unit == promised[0]


@pytest.mark.parametrize(("struct", "field"), FIELDS)
def test_the_page_has_a_row_for_it(generate, struct, field):
    page = (ROOT / "docs" / "topology.md").read_text()
    table = generate.table_of(struct)
    assert table in page
    (row,) = re.findall(rf"^\| `{field.name}` \| (.*) \|$", table, re.MULTILINE)
    allowed, unit, default, kind, meaning = row.split(" | ")
    assert allowed and meaning and kind in ("static", "live")
    assert bool(unit.strip()) == is_quantity(field.type)
    assert default.strip() or (field.default is None or "default" in meaning or field.name == "num_blocks")


@pytest.mark.parametrize("note", ["Size of the pool [blocks]", "", "static", "Size. live.", "Size [blocks] static"])
def test_a_note_that_says_too_little_is_refused(generate, note):
    with pytest.raises(ValueError, match="static or live"):
        generate.parts_of(note)
