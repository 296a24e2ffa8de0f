"""Messages from the proposer to the scheduler.

| message | sender   | receiver  | transport | bound      | when full | when the peer dies             |
|---------|----------|-----------|-----------|------------|-----------|--------------------------------|
| Drafts  | proposer | scheduler | mailbox   | one a step | dropped   | the requests go on without any |
"""

from __future__ import annotations

import msgspec


class Drafts(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=52):
    """Guesses at the next tokens of several requests: parallel lists. A draft of a run that is over, or behind another
    position than the last known token, is dropped."""

    runs: list[int]
    positions: list[int]
    """Of each first draft: the number of tokens that were known."""
    token_ids: list[list[int]]
