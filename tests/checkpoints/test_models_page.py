"""docs/models.md says what the registry has and what the readers refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from callboard.checkpoints.architectures import GGUF_ARCHITECTURES, HUGGING_FACE_CLASSES, SUPPORTED_ARCHITECTURES
from callboard.checkpoints.hf_config import LlamaConfig, RopeParameters
from callboard.checkpoints.hf_rope import read_rope
from callboard.errors import UnsupportedModel
from callboard.models.registry import MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def rows_of(header: str) -> list[list[str]]:
    """Cells of the table whose first row begins with `header`."""
    lines = PAGE[PAGE.index(f"| {header}") :].splitlines()
    table = lines[: next(index for index, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]


def test_the_families_are_those_of_the_registry() -> None:
    rows = rows_of("family")
    assert [row[0].strip("`") for row in rows] == list(MODELS) == list(SUPPORTED_ARCHITECTURES)
    classes = {name: row[0].strip("`") for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert classes == HUGGING_FACE_CLASSES
    assert tuple(dict.fromkeys(row[2].strip("`") for row in rows)) == GGUF_ARCHITECTURES


def test_a_row_says_something_of_every_family() -> None:
    header = next(line for line in PAGE.splitlines() if line.startswith("| | `llama`"))
    assert re.findall(r"`(\w+)`", header) == list(SUPPORTED_ARCHITECTURES)
    assert all(len(row) == 1 + len(SUPPORTED_ARCHITECTURES) for row in rows_of("| `llama`"))


@pytest.mark.parametrize(
    ("kind", "is_supported"),
    [(kind, row[1].startswith("yes")) for row in rows_of("`rope_type`") for kind in re.findall(r"`(\w+)`", row[0])],
)
def test_kinds_of_rotary_scaling_are_supported_as_it_says(kind: str, is_supported: bool) -> None:
    rope = RopeParameters(rope_type=kind, factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0)
    config = LlamaConfig(2, 64, 4, 96, 40, rope_scaling=rope)
    if is_supported:
        assert read_rope(config, 16, "config.json").theta == 10_000.0
    else:
        with pytest.raises(UnsupportedModel, match=f"'{kind}'"):
            read_rope(config, 16, "config.json")
