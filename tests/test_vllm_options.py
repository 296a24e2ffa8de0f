"""docs/vllm_options.md names fields that there are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from callboard.topology.schema import ProcessSection, Topology

PAGE = Path(__file__).resolve().parent.parent / "docs" / "vllm_options.md"
NAME = re.compile(r"`((?:model|scheduler|kv_cache|server|supervision|process)\.[a-z_.0-9]+)`")


def allowed() -> dict[str, set[str]]:
    """Section -> its fields."""
    sections = {}
    for field in msgspec.structs.fields(Topology):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            sections[field.name] = set(field.type.__struct_fields__)
    sections["process"] = set(ProcessSection.__struct_fields__)
    return sections


def unknown(text: str) -> list[str]:
    sections = allowed()
    names = [name.split(".") for name in NAME.findall(text)]
    return [".".join(parts) for parts in names if parts[-1] not in sections[parts[0]]]


def test_every_field_on_the_page_exists() -> None:
    text = PAGE.read_text()
    assert len(NAME.findall(text)) > 20
    assert unknown(text) == []


@pytest.mark.parametrize("name", ["model.no_such_field", "process.worker.cores"])
def test_a_field_that_does_not_exist_is_seen(name: str) -> None:
    assert unknown(f"| `--x` | `{name}` | |") == [name]
