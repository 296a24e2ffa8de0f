"""What the twin says that a plan must be, in words that can be read beside those of the scheduler."""

from __future__ import annotations

from typing import NamedTuple

from callboard.tests.scheduling.twin_request import Key


class TwinRow(NamedTuple):
    """A row that computes: positions start .. start + num_tokens - 1, of which the last ones are drafts."""

    key: Key
    start: int
    num_tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()


class TwinNewRow(NamedTuple):
    """A request that takes a row."""

    key: Key
    attempt: int
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]


class TwinPlan:
    """One step."""

    def __init__(self) -> None:
        self.rows: list[TwinRow] = []
        self.new_rows: list[TwinNewRow] = []
        self.grown: list[tuple[Key, int]] = []
        """(request, block appended to its table)"""
        self.is_fresh = False

    def lines(self) -> list[str]:
        """For people, and for comparison."""
        return [
            *(["fresh"] if self.is_fresh else []),
            *(
                f"new  {key} attempt {attempt} tokens {list(tokens)} blocks {list(blocks)}"
                for key, attempt, tokens, blocks in self.new_rows
            ),
            *(f"grow {key} block {block}" for key, block in self.grown),
            *(
                f"run  {row.key} positions {row.start}..{row.start + row.num_tokens - 1}"
                + (" samples" if row.samples else "")
                + (f" drafts {list(row.drafts)}" if row.drafts else "")
                for row in self.rows
            ),
        ]
