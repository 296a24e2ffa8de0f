"""Token ids for the requests of a trace, which says only how long they are and what they share."""

from __future__ import annotations

from .trace import TraceRequest

_NAMES = 1 << 30
"""Ids below it name a shared block, or stand for output; those from it on name a request."""


def prompt_token_ids(request: TraceRequest, index: int) -> list[int]:
    """The prompt of request `index`: as the trace gives it, or made up.

    Equal beginnings of `prefix_ids` give equal tokens, and nothing else does: the first token of each shared block is
    its id, behind the last one stands `index`, and all others are 0. A block's key covers all that is before it, so
    that is enough.
    """
    if request.token_ids:
        return list(request.token_ids)
    num_tokens, size = request.num_prompt_tokens, request.prefix_block_tokens
    tokens = [0] * num_tokens
    ids = [prefix_id % _NAMES for prefix_id in request.prefix_ids[: -(-num_tokens // size)]]
    num_shared = min(len(ids) * size, num_tokens)
    tokens[:num_shared:size] = ids
    if num_shared < num_tokens:
        tokens[num_shared] = _NAMES + index
    return tokens
