"""Which tokens the draft model's keys and values in each block are of.

A block is named by all tokens up to its end (a digest of the one before it and its own tokens), for these are what its
keys and values follow from. So a row that comes with blocks of a prefix finds out what of it is there, whoever computed
it; and where the draft model never computed a block, or has put other tokens there since, it is not.
"""

from __future__ import annotations

from hashlib import blake2b

from .input_batch import InputBatch

_NONE = b""


class DraftBlocks:
    """Of a pool of `num_blocks` blocks, for the rows of a batch."""

    def __init__(self, batch: InputBatch, num_blocks: int) -> None:
        self._batch = batch
        self._held = [_NONE] * num_blocks
        """Digest of what is in each block; none where it is not full."""
        self._chains: list[list[bytes]] = [[] for _ in range(batch.max_num_seqs)]
        """Of each row: the digests of its blocks that are full and computed."""

    def enter(self, row: int, num_tokens: int) -> int:
        """A request with so many known tokens has come into a row with its blocks: how many of its positions are there
        already, in full blocks."""
        chain = self._chains[row] = []
        table = self._batch.block_table[row]
        for index in range(min(num_tokens // self._batch.block_size, int(self._batch.num_blocks[row]))):
            digest = self._digest(row, index, chain)
            if self._held[table[index]] != digest:
                break
            chain.append(digest)
        return len(chain) * self._batch.block_size

    def fill(self, row: int, num_computed: int) -> None:
        """The row's known tokens are computed up to there, and behind it any guesses may be."""
        chain, size = self._chains[row], self._batch.block_size
        table, num_blocks = self._batch.block_table[row], int(self._batch.num_blocks[row])
        for index in range(len(chain), num_computed // size):
            chain.append(self._digest(row, index, chain))
            self._held[table[index]] = chain[-1]
        for index in range(num_computed // size, num_blocks):
            self._held[table[index]] = _NONE

    def _digest(self, row: int, index: int, chain: list[bytes]) -> bytes:
        size = self._batch.block_size
        before = chain[index - 1] if index else _NONE
        tokens = self._batch.token_ids[row, index * size : (index + 1) * size]
        return blake2b(before + tokens.tobytes(), digest_size=16).digest()
