"""Keys of full blocks: a chained, collision-resistant hash, for tenants with different salts share one cache.

    key[i] = SHA-256(key[i-1] | length of extra, 4 bytes | extra | the block's tokens as little-endian int32)

`key[-1]` is 32 zero bytes. Equal keys mean equal tokens from position 0 on, under equal extra keys.
"""

from __future__ import annotations

from array import array
from hashlib import sha256

ROOT_KEY = bytes(32)


def extra_keys(cache_salt: str, adapter: str = "") -> bytes:
    """What beside tokens decides the content of a block, as unambiguous bytes; empty when there is nothing.

    `adapter` is the identity of the adapter that the request runs with.
    """
    if not cache_salt and not adapter:
        return b""
    parts = (cache_salt.encode(), adapter.encode())
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


class BlockKeys:
    """The keys of one request's full blocks, computed once each, in order."""

    def __init__(self, block_size: int, extra: bytes) -> None:
        self._block_size = block_size
        self._extra = _framed(extra)
        self._keys: list[bytes] = []

    def upto(self, num_blocks: int, token_ids: array[int]) -> list[bytes]:
        """Keys of at least the first `num_blocks` blocks of `token_ids` (int32), whose tokens must all be known by now.

        The list is the object's own: read only. Earlier tokens never change.
        """
        keys = self._keys
        done = len(keys)
        if done < num_blocks:
            size, extra = self._block_size, self._extra
            if num_blocks - done == 1 and done:  # a request that decodes
                block = token_ids[done * size : num_blocks * size].tobytes()
                assert len(block) == 4 * size, "a block is not full"
                keys.append(sha256(keys[-1] + extra + block).digest())
                return keys
            tokens = token_ids[done * size : num_blocks * size].tobytes()
            assert len(tokens) == 4 * size * (num_blocks - done), "a block is not full"
            parent = keys[-1] if keys else ROOT_KEY
            for at in range(0, len(tokens), 4 * size):
                parent = sha256(parent + extra + tokens[at : at + 4 * size]).digest()
                keys.append(parent)
        return keys

    def forget_from(self, num_tokens: int) -> None:
        """Tokens from this position on may become others."""
        del self._keys[num_tokens // self._block_size :]


def _framed(extra: bytes) -> bytes:
    return len(extra).to_bytes(4, "little") + extra
