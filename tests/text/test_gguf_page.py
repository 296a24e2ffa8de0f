"""docs/gguf.md names what the code has, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

from callboard.checkpoints.gguf_types import BLOCKS
from callboard.text.pre_tokenizers import SPLIT_RULES

PAGE = (Path(__file__).parents[2] / "docs" / "gguf.md").read_text()


def names_in_table(header: str) -> list[str]:
    """Of the last column of the table below `header`."""
    rows = PAGE.partition(header)[2].splitlines()[2:]
    end = next(index for index, row in enumerate(rows) if not row.startswith("|"))
    return [name for row in rows[:end] for name in re.split(r",\s*", row.split("|")[2].strip())]


def test_types_of_tensors() -> None:
    assert sorted(names_in_table("| kind | types |")) == sorted(BLOCKS)


def test_splits() -> None:
    assert sorted(names_in_table("| split | tokenizer.ggml.pre |")) == sorted(SPLIT_RULES)
