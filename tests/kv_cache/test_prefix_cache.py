"""Keys of blocks, and how much of a prompt is found again."""

from __future__ import annotations

import json
from array import array
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.kv_cache.block_hash import BlockKeys, extra_keys
from callboard.kv_cache.block_pool import BlockPool, blocks_for
from callboard.kv_cache.prefix_cache import find_prefix, register_full_blocks

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
SHARED = list(range(1000, 4000))


def filled(num_tokens: int, salt: str = "") -> BlockPool:
    """A pool in which a request with the first `num_tokens` of SHARED has been computed and freed."""
    pool = BlockPool(400, 16, True)
    tokens = SHARED[:num_tokens]
    blocks = pool.allocate(blocks_for(num_tokens, 16))
    register_full_blocks(pool, BlockKeys(16, extra_keys(salt)), array("i", tokens), blocks, 0, num_tokens // 16)
    pool.free(blocks)
    return pool


def num_hit(pool: BlockPool, tokens: list[int], salt: str = "") -> int:
    return len(find_prefix(pool, BlockKeys(16, extra_keys(salt)), array("i", tokens)))


@pytest.mark.parametrize("num_tokens", [2000, 2005])
def test_full_blocks_cached(num_tokens: int) -> None:
    assert filled(num_tokens).statistics().num_cached == GOLDEN[f"full_blocks_cached_{num_tokens}"]["value"]


def test_prefix_hit_2000_shared_plus_50() -> None:
    tokens = SHARED[:2000] + [7] * 50
    hit = num_hit(filled(2000), tokens)
    assert {"blocks": hit, "computed": len(tokens) - 16 * hit} == GOLDEN["prefix_hit_2000_shared_plus_50"]["value"]


def test_prefix_hit_2005_shared() -> None:
    assert {"blocks": num_hit(filled(2005), SHARED[:2005] + [7] * 50)} == GOLDEN["prefix_hit_2005_shared"]["value"]


def test_prefix_hit_exact_repeat_2000() -> None:
    assert {"blocks": num_hit(filled(2000), SHARED[:2000])} == GOLDEN["prefix_hit_exact_repeat_2000"]["value"]


def test_the_hit_ends_at_the_first_block_that_is_not_there() -> None:
    tokens = [*SHARED[:40], 7, *SHARED[41:100]]
    assert num_hit(filled(100), tokens) == 2


def test_another_salt_hits_nothing() -> None:
    pool = filled(100, salt="tenant a")
    assert num_hit(pool, SHARED[:100], salt="tenant a") == 6
    assert num_hit(pool, SHARED[:100], salt="tenant b") == 0
    assert num_hit(pool, SHARED[:100]) == 0


def test_a_key_is_sha256_of_parent_extra_and_int32_tokens() -> None:
    tokens = b"\x01\x00\x00\x00\xff\xff\x01\x00"
    keys = BlockKeys(2, b"xy").upto(1, array("i", [1, 131071]))
    assert keys == [sha256(bytes(32) + b"\x02\x00\x00\x00xy" + tokens).digest()]


def test_a_key_names_all_tokens_before_it() -> None:
    one = BlockKeys(2, b"").upto(2, array("i", [1, 2, 3, 4]))
    other = BlockKeys(2, b"").upto(2, array("i", [9, 2, 3, 4]))
    assert one[1] != other[1]


def test_a_block_that_is_not_full_has_no_key() -> None:
    with pytest.raises(AssertionError, match="not full"):
        BlockKeys(4, b"").upto(1, array("i", [1, 2, 3]))


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=2, max_size=2, unique=True))
def test_extra_keys_are_unambiguous(pairs: list[tuple[str, str]]) -> None:
    assert extra_keys(*pairs[0]) != extra_keys(*pairs[1])


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=60), st.integers(1, 7), st.data())
def test_keys_do_not_depend_on_when_they_are_asked_for(tokens: list[int], size: int, data: st.DataObject) -> None:
    num_full = len(tokens) // size
    at_once = list(BlockKeys(size, b"s").upto(num_full, array("i", tokens)))
    slowly = BlockKeys(size, b"s")
    for count in sorted(data.draw(st.lists(st.integers(0, num_full), max_size=4))):
        slowly.upto(count, array("i", tokens))
    assert slowly.upto(num_full, array("i", tokens)) == at_once
