"""What the twin says that a plan must be, in words that can be read beside those of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from callboard.tests.scheduling.twin_request import Key


class TwinRow(NamedTuple):
    """A row that computes: positions start .. start + num_tokens - 1, of which the last ones are drafts. If the worker
    guesses: from where it stands, start or behind it, a token and up to `max_drafts` more, none at `draft_end`."""

    key: Key
    start: int
    num_tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()
    max_drafts: int = -1
    draft_end: int = 0


class TwinNewRow(NamedTuple):
    """A request that takes a row."""

    key: Key
    attempt: int
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]


@dataclass
class TwinPlan:
    """One step."""

    rows: list[TwinRow] = field(default_factory=list)
    new_rows: list[TwinNewRow] = field(default_factory=list)
    grown: list[tuple[Key, int]] = field(default_factory=list)
    """(request, block appended to its table)"""
    is_fresh: bool = False
    num_guesses: int = field(default=0, compare=False)
    """Tokens of the budget that are kept for what the worker guesses."""

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
                + (f" up to {row.max_drafts} guesses before {row.draft_end}" if row.max_drafts >= 0 else "")
                for row in self.rows
            ),
        ]
