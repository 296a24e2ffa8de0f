"""A connector that brings keys and values from elsewhere: late, in any order, in part, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.mailbox.messages.transfers import BlocksLoaded, LoadBlocks

GARBAGE = -7


class FakeConnector:
    """Until it answers it writes to the blocks of a transfer, so that whoever uses one too early reads nonsense."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.loads: dict[int, LoadBlocks] = {}

    def begin(self, loads: Sequence[LoadBlocks]) -> None:
        for load in loads:
            assert load.transfer not in self.loads
            assert load.num_tokens == len(load.block_ids) * self.block_size > 0
            in_use = [block for other in self.loads.values() for block in other.block_ids]
            assert not set(load.block_ids) & set(in_use), "two transfers write to one block"
            self.loads[load.transfer] = load

    def write(self, kv: dict[tuple[int, int], int]) -> None:
        """Every transfer under way writes something."""
        for load in self.loads.values():
            kv.update(((block, at), GARBAGE) for block in load.block_ids for at in range(self.block_size))

    def answer(
        self, transfer: int, num_tokens: int, contents: Sequence[int], kv: dict[tuple[int, int], int] | None
    ) -> BlocksLoaded:
        """The transfer is over: `num_tokens` positions, whose K/V are `contents`, have come; `kv`: None if the worker's
        memory is gone."""
        load = self.loads.pop(transfer)
        for position in range(num_tokens if kv is not None else 0):
            block = load.block_ids[position // self.block_size]
            kv[block, position % self.block_size] = contents[position]  # type: ignore[index]
        return BlocksLoaded(transfer, num_tokens)
