"""The block pool against golden numbers, against its rules one by one, and against a brute-force twin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from callboard.kv_cache.block_pool import BlockPool, blocks_for

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())


@pytest.mark.parametrize("num_tokens", [17, 2000, 2005, 2050, 2350, 4096])
def test_blocks_for_tokens_bs16(num_tokens: int) -> None:
    assert blocks_for(num_tokens, 16) == GOLDEN[f"blocks_for_{num_tokens}_tokens_bs16"]["value"]


def looked_up(pool: BlockPool, key: bytes) -> int | None:
    return next(iter(pool.lookup_run([key], 1)), None)


def test_blocks_for_edges() -> None:
    assert [blocks_for(n, 16) for n in (0, 1, 16, 32, 33)] == [0, 1, 1, 2, 3]


def test_allocation_takes_the_head_and_freed_blocks_go_to_the_tail_last_block_first() -> None:
    pool = BlockPool(6, 16, True)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([0, 1, 2])
    assert pool.allocate(6) == [3, 4, 5, 2, 1, 0]


def test_a_shared_block_is_free_when_its_last_owner_leaves() -> None:
    pool = BlockPool(2, 16, True)
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.free([block])
    assert pool.num_free == 1 and pool.count_users([block], 0) == 0
    pool.free([block])
    assert pool.num_free == 2 and pool.count_users([block], 0)


def test_a_free_block_is_hit_until_allocation_takes_it() -> None:
    pool = BlockPool(3, 16, True)
    (block,) = pool.allocate(1)
    pool.register([block], [b"key"])
    pool.free([block])
    assert looked_up(pool, b"key") == block
    pool.allocate(2)
    assert looked_up(pool, b"key") == block
    pool.allocate(1)
    assert looked_up(pool, b"key") is None


def test_a_hit_takes_the_block_out_of_the_middle_of_the_free_list() -> None:
    pool = BlockPool(4, 16, True)
    blocks = pool.allocate(4)
    pool.register([blocks[1]], [b"key"])
    pool.free(blocks)
    pool.share([blocks[1]])
    assert pool.num_free == 3
    assert pool.allocate(3) == [3, 2, 0]
    assert looked_up(pool, b"key") == 1


def test_the_first_block_of_a_key_stays_the_one_found() -> None:
    pool = BlockPool(2, 16, True)
    first, second = pool.allocate(2)
    pool.register([first], [b"key"])
    pool.register([second], [b"key"])
    assert looked_up(pool, b"key") == first
    assert pool.statistics().num_cached == 1


def test_without_prefix_caching_nothing_is_found() -> None:
    pool = BlockPool(2, 16, False)
    (block,) = pool.allocate(1)
    pool.register([block], [b"key"])
    assert looked_up(pool, b"key") is None


def test_forgotten_keys_are_not_found_and_owners_stay() -> None:
    pool = BlockPool(2, 16, True)
    (block,) = pool.allocate(1)
    pool.register([block], [b"key"])
    pool.forget_keys()
    assert looked_up(pool, b"key") is None
    assert pool.check_integrity([[block]]) == []


def test_a_leak_is_named_and_repaired() -> None:
    pool = BlockPool(4, 16, True)
    kept, leaked = pool.allocate(2)
    assert pool.check_integrity([[kept]]) == [leaked]
    assert pool.num_free == 3
    assert pool.check_integrity([[kept]]) == []


def test_a_block_with_more_owners_than_references_is_no_leak() -> None:
    pool = BlockPool(4, 16, True)
    (block,) = pool.allocate(1)
    with pytest.raises(AssertionError, match="has 2 owners but 1 references"):
        pool.check_integrity([[block], [block]])


def test_freeing_twice_is_caught() -> None:
    pool = BlockPool(4, 16, True)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(AssertionError, match="nobody uses it"):
        pool.free([block])


def test_more_than_free_is_the_callers_mistake() -> None:
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 free"):
        BlockPool(2, 16, True).allocate(3)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="a pool needs blocks"):
        BlockPool(num_blocks, block_size, True)


def test_hundreds_of_thousands_of_blocks() -> None:
    pool = BlockPool(300_000, 16, True)
    owners = [pool.allocate(100) for _ in range(3000)]
    assert pool.num_free == 0
    for blocks in owners[::2]:
        pool.free(blocks)
    assert pool.num_free == 150_000
    assert pool.check_integrity(owners[1::2]) == []


class PoolTwin(RuleBasedStateMachine):
    """The pool beside plain lists: a list of free blocks, a dict of owners, a dict of keys."""

    NUM_BLOCKS = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.NUM_BLOCKS, 4, True)
        self.free = list(range(self.NUM_BLOCKS))
        self.owners: list[list[int]] = []
        self.key_of: dict[int, bytes] = {}

    def used(self) -> set[int]:
        return {block for blocks in self.owners for block in blocks}

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        if count > len(self.free):
            return
        expected, self.free = self.free[:count], self.free[count:]
        for block in expected:
            self.key_of.pop(block, None)
        assert self.pool.allocate(count) == expected
        self.owners.append(expected)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def free_owner(self, data: st.DataObject) -> None:
        blocks = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        self.pool.free(blocks)
        self.free += [block for block in reversed(blocks) if block not in self.used()]

    @precondition(lambda self: self.used())
    @rule(data=st.data(), key=st.sampled_from([b"a", b"b", b"c"]))
    def register(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(self.used())))
        self.pool.register([block], [key])
        if block not in self.key_of and key not in self.key_of.values():
            self.key_of[block] = key

    @rule(key=st.sampled_from([b"a", b"b", b"c"]))
    def hit(self, key: bytes) -> None:
        expected = next((block for block, known in self.key_of.items() if known == key), None)
        assert looked_up(self.pool, key) == expected
        if expected is not None:
            self.pool.share([expected])
            self.owners.append([expected])
            if expected in self.free:
                self.free.remove(expected)

    @rule()
    def forget(self) -> None:
        self.pool.forget_keys()
        self.key_of = {}

    @invariant()
    def conserves(self) -> None:
        assert self.pool.check_integrity(self.owners) == []
        statistics = self.pool.statistics()
        assert statistics.num_free == len(self.free)
        assert statistics.num_free + statistics.num_used == self.NUM_BLOCKS
        assert statistics.num_cached == len(self.key_of)


PoolTwin.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolTwin = PoolTwin.TestCase
