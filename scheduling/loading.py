"""Requests whose prompt stands elsewhere already: its keys and values are loaded, not computed."""

from __future__ import annotations

from ..kv_cache.block_pool import blocks_for
from ..kv_cache.prefix_cache import register_full_blocks
from ..mailbox.messages.transfers import BlocksLoaded
from .next_in_line import next_in_line
from .request import Request, RequestState
from .state import SchedulerState
from .waiting_for_grammar import await_grammar


def num_loadable(state: SchedulerState, request: Request) -> int:
    """Tokens that can be loaded, in whole blocks; one token at least must be computed, all if log-probabilities of the
    prompt are gathered."""
    if request.prompt_logprobs is not None:
        return 0
    size = state.limits.block_size
    return min(request.num_remote_tokens, request.num_tokens - 1) // size * size


def begin_loading(state: SchedulerState, request: Request) -> None:
    """Its turn has come, and the pool has the blocks: they are its own, and filled from elsewhere."""
    num_tokens = num_loadable(state, request)
    request.num_remote_tokens = 0  # it is tried once
    block_ids = state.pool.allocate(blocks_for(num_tokens, state.limits.block_size))
    state.hold_back(request, RequestState.WAITING_FOR_REMOTE_KV)
    transfer = state.transfers.begin(request, num_tokens, block_ids, state.steps.num_planned)
    state.leaks.load(transfer, request.key, block_ids, state.steps.num_planned)


def blocks_loaded(state: SchedulerState, event: BlocksLoaded) -> None:
    """What is there can be used, and found by others; the other blocks are free."""
    request, block_ids = state.transfers.complete(event.transfer)
    if request is None:
        state.leaks.end_load(event.transfer, block_ids)
        state.pool.free(block_ids)
        return
    size = state.limits.block_size
    num_full = min(event.num_tokens // size, len(block_ids))
    state.leaks.end_load(event.transfer, block_ids[num_full:])
    if not num_full:
        state.leaks.unload(request, "goes on without it")
    state.pool.free(block_ids[num_full:])
    request.block_ids = block_ids[:num_full]
    request.num_loaded_tokens = num_full * size
    register_full_blocks(state.pool, request.block_keys, request.token_ids, request.block_ids, 0, num_full)
    _go_on(state, request)


def lose_loaded(state: SchedulerState) -> None:
    """The worker is gone, or its memory is not to be trusted: what was loaded is lost, what is on its way unwanted."""
    for request in state.transfers.waiting():
        state.leaks.unload(request, "goes on without it")
        state.transfers.abandon(request)
        _go_on(state, request)
    for request in state.waiting.values():
        if request.block_ids:
            state.release_blocks(request)


def _go_on(state: SchedulerState, request: Request) -> None:
    """The grammar that was ready when it began to load may be lost."""
    state.let_go(request)
    await_grammar(state, request)


def lose_one_loaded(state: SchedulerState) -> bool:
    """The last one of those that wait with what was loaded for them gives it up, so that somebody gets on: while
    nothing runs that is the one whose turn it is, and it is spared. False if there is none."""
    spared = None if state.running else next_in_line(state)
    for request in reversed(state.waiting.values()):
        if request.block_ids and request is not spared:
            state.release_blocks(request)
            return True
    return False
