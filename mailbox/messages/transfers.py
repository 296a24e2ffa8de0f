"""Messages between the scheduler and a connector, which brings keys and values from elsewhere.

| message       | sender    | receiver  | transport | bound          | when full                        | when the peer dies      |
|---------------|-----------|-----------|-----------|----------------|----------------------------------|-------------------------|
| LoadBlocks    | scheduler | connector | mailbox   | one a transfer | kept and sent when there is room | computed, not loaded    |
| BlocksLoaded  | connector | scheduler | mailbox   | one a transfer | kept and sent when there is room | computed, not loaded    |
"""

from __future__ import annotations

import msgspec


class LoadBlocks(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=53):
    """Write the first `num_tokens` positions of a prompt into these blocks. Until `BlocksLoaded` they belong to the
    transfer, even if the request ends."""

    transfer: int
    """A number that the scheduler never reuses."""
    request_id: str
    choice: int
    num_tokens: int
    block_ids: list[int]


class BlocksLoaded(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=54):
    """The transfer is over: `num_tokens` positions are there, none if it failed. Nothing writes to its blocks now."""

    transfer: int
    num_tokens: int
