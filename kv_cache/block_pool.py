"""The pool of KV blocks: who uses which, which are free, and which may be found again by their content.

Free blocks form a doubly linked list threaded through two integer arrays, so that taking one, giving one back, and
taking one out of the middle (a prefix hit) are O(1) however many there are. Allocation takes from the head, freed
blocks go to the tail. A free block keeps its key, and can be hit, until allocation takes it: eviction is a side
effect of allocation, least recently freed first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import msgspec

_LOOKUPS = 64
"""Keys that are looked up without asking in between whether the run has ended."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens: 16 -> 1, 17 -> 2 at 16 tokens a block."""
    return -(-num_tokens // block_size)


class BlockPoolStatistics(msgspec.Struct, frozen=True, gc=False):
    """Gauges of a pool, in blocks. `num_free` includes the cached blocks that nobody uses."""

    num_blocks: int
    num_free: int
    num_used: int
    num_cached: int
    """Blocks that have a key, used or free."""


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, named 0 .. num_blocks - 1; `prefix_caching` gives them keys.

    Invariants: free + used = num_blocks; a block is in the free list exactly when its reference count is 0; keys and
    blocks with a key map one to one.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and tokens in them, got {num_blocks} blocks of {block_size} tokens")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.num_free = num_blocks
        self._ref_cnt = array("i", bytes(4 * num_blocks))
        self._keys: list[bytes | None] = [None] * num_blocks
        self._block_by_key: dict[bytes, int] = {}
        # The list is a ring closed by one sentinel, whose links are the head and the tail.
        self._sentinel = num_blocks
        self._next = array("i", (*range(1, num_blocks + 1), 0))
        self._previous = array("i", (num_blocks, *range(num_blocks)))

    def allocate(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` blocks from the head of the free list; each loses its key and has one reference.

        The caller has checked `num_free`.
        """
        assert 0 <= num_blocks <= self.num_free, f"{num_blocks} blocks wanted, {self.num_free} free"
        ref_cnt, keys, following, block_by_key = self._ref_cnt, self._keys, self._next, self._block_by_key
        taken = []
        block = following[self._sentinel]
        for _ in range(num_blocks):
            taken.append(block)
            ref_cnt[block] = 1
            key = keys[block]
            if key is not None:
                keys[block] = None
                del block_by_key[key]
            block = following[block]
        self._link(self._sentinel, block)
        self.num_free -= num_blocks
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`, used or free (a prefix hit); a free one leaves the free list."""
        for block in blocks:
            if self._ref_cnt[block] == 0:
                self._link(self._previous[block], self._next[block])
                self.num_free -= 1
            self._ref_cnt[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of a request's `blocks`, last block first, so that a prefix outlives its ends."""
        ref_cnt = self._ref_cnt
        freed = []
        for block in reversed(blocks):
            assert ref_cnt[block] > 0, f"block {block} is freed but nobody uses it"
            ref_cnt[block] -= 1
            if not ref_cnt[block]:
                freed.append(block)
        self._append_free(freed)

    def register(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """Make each of the used `blocks` findable by its key, unless another block is already."""
        ref_cnt, own_keys, block_by_key = self._ref_cnt, self._keys, self._block_by_key
        for block, key in zip(blocks, keys, strict=True):
            assert ref_cnt[block] > 0, f"block {block} is registered but nobody uses it"
            if self.prefix_caching and own_keys[block] is None and key not in block_by_key:
                own_keys[block] = key
                block_by_key[key] = block

    def lookup_run(self, keys: Sequence[bytes], max_blocks: int) -> list[int]:
        """The blocks of the first keys, as far as they are there, at most `max_blocks`. The caller shares them before
        anything is allocated."""
        found: list[int] = []
        get = self._block_by_key.get
        for start in range(0, max_blocks, _LOOKUPS):
            for block in map(get, keys[start : min(start + _LOOKUPS, max_blocks)]):
                if block is None:
                    return found
                found.append(block)
        return found

    def count_users(self, blocks: Iterable[int], num_users: int) -> int:
        """Of these blocks, those that exactly so many requests and transfers hold."""
        return list(map(self._ref_cnt.__getitem__, blocks)).count(num_users)

    def forget_keys(self) -> None:
        """Empty the prefix cache: no block can be hit any more. Owners are not touched."""
        self._keys = [None] * self.num_blocks
        self._block_by_key.clear()

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> list[int]:
        """Compare the pool with the block tables of all `owners`; O(num_blocks).

        Returns the leaked blocks, each as often as it has more references than owners, after giving those back. Asserts
        what cannot be repaired: a block with more owners than references, a broken free list, a key that leads astray.
        """
        references = array("i", bytes(4 * self.num_blocks))
        for blocks in owners:
            for block in blocks:
                references[block] += 1
        leaked = []
        for block in range(self.num_blocks):
            surplus = self._ref_cnt[block] - references[block]
            assert surplus >= 0, f"block {block} has {references[block]} owners but {self._ref_cnt[block]} references"
            if surplus:
                leaked += [block] * surplus
                self._ref_cnt[block] = references[block]
                if references[block] == 0:
                    self._append_free([block])
        self._check_free_list()
        self._check_keys()
        return leaked

    def statistics(self) -> BlockPoolStatistics:
        """Gauges now."""
        return BlockPoolStatistics(
            num_blocks=self.num_blocks,
            num_free=self.num_free,
            num_used=self.num_blocks - self.num_free,
            num_cached=len(self._block_by_key),
        )

    def _link(self, left: int, right: int) -> None:
        self._next[left] = right
        self._previous[right] = left

    def _append_free(self, blocks: Sequence[int]) -> None:
        following, previous = self._next, self._previous
        end = self._sentinel
        tail = previous[end]
        for block in blocks:
            following[tail] = block
            previous[block] = tail
            tail = block
        self._link(tail, end)
        self.num_free += len(blocks)

    def _check_free_list(self) -> None:
        num_listed = 0
        at = self._sentinel
        while (following := self._next[at]) != self._sentinel:
            assert self._previous[following] == at, f"free list is broken between {at} and {following}"
            assert self._ref_cnt[following] == 0, f"block {following} is free and used"
            num_listed += 1
            assert num_listed <= self.num_blocks, "the free list is a circle"
            at = following
        assert self._previous[self._sentinel] == at, "the free list has another tail"
        assert num_listed == self.num_free, f"{num_listed} blocks in the free list, {self.num_free} counted"
        num_unused = sum(1 for count in self._ref_cnt if count == 0)
        assert num_unused == num_listed, f"{num_unused} blocks unused, {num_listed} in the free list"

    def _check_keys(self) -> None:
        keyed = {key: block for block, key in enumerate(self._keys) if key is not None}
        assert keyed == self._block_by_key, "keys of blocks and the map of keys differ"
