"""Finding a prefix in the pool, and making a request's full blocks findable."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from .block_hash import BlockKeys
from .block_pool import BlockPool


def find_prefix(pool: BlockPool, keys: BlockKeys, token_ids: array[int]) -> list[int]:
    """The longest run of cached blocks that begin `token_ids`, first block first; nothing is shared yet.

    At most `len(token_ids) - 1` tokens are found, in whole blocks, since one token must be computed: an exact repeat
    of 2,000 tokens hits 124 blocks of 16, with 50 tokens more it hits 125.
    """
    if not pool.prefix_caching:
        return []
    max_blocks = (len(token_ids) - 1) // pool.block_size
    return pool.lookup_run(keys.upto(max_blocks, token_ids), max_blocks)


def register_full_blocks(
    pool: BlockPool,
    keys: BlockKeys,
    token_ids: array[int],
    blocks: Sequence[int],
    num_registered: int,
    num_full: int,
) -> None:
    """Make blocks `num_registered .. num_full - 1` of a request findable.

    `num_full` blocks have all tokens known and all their positions in a plan that has been made.
    """
    if pool.prefix_caching:
        known = keys.upto(num_full, token_ids)
        pool.register(blocks[num_registered:num_full], known[num_registered:num_full])
