"""What ranks in processes of their own exchange through shared memory, compiled: they write, meet, and read.

A meeting is over when all ranks have come to it. Each adds one to a count; the last one to come moves the number of
meetings on and wakes those that sleep until it does. The shared words are changed by atomic additions and read by
atomic loads alone, all of them in one order (`seq_cst`). So when the last one to come finds nobody asleep, the other
looks at the number after it was moved on, and does not go to sleep; and what a rank wrote before a meeting all others
read after it.

Slots alternate from call to call. A rank writes to its slot again two calls later, and has then been at a meeting of
the call between, to which the others came when they had read.

Few bytes: every rank reads all slots and adds them. Many: each adds its own share of the elements, in its own slot, and
after a second meeting all copy the shares. Both add in the order of the ranks, so all ranks have the same bits.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from .compiled import compiled
from .floats import floats_at, narrow, widen, words_at
from .rank_words import (
    ARRIVALS,
    CALLS,
    DISAGREEMENT,
    DONE,
    MEETINGS,
    MOST_PATIENCE,
    NUM_GIVERS,
    NUM_TAKEN,
    PASSED,
    PATIENCE,
    SCRATCH,
    SIGNATURES,
    SIZE,
    SLEEPING,
    SOURCE,
    STAGE,
    STRIDE,
    SUM_FLOAT32,
    TARGET,
    TIMEOUT_NS,
    WAITING,
    WHAT,
)
from .team import LONGEST_SPIN, SHORTEST_SPIN
from .vector_ir import INT32, INT64, Emitter
from .words import add, clock, get, pause, wait_shared, wake_shared

_BEGIN, _FIRST, _SECOND = 0, 1, 2
"""Where a call stands: not begun, before its first meeting, before its second one."""
_SPINS_PER_YIELD = 32
_LINE = 64
"""Elements that a rank's share of a sum is a multiple of, so that no two ranks write to one line of the cache."""


@intrinsic
def _copy(context, target, source, num_bytes):
    """Between addresses."""

    def codegen(context, builder, signature, arguments):
        Emitter(builder).call("memcpy", INT64, *arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _let_others_run(context):
    """Another rank may have been put on this core."""

    def codegen(context, builder, signature, arguments):
        Emitter(builder).call("sched_yield", INT32)
        return context.get_dummy_value()

    return types.void(), codegen


@compiled
def _slot(ranks, parity, rank):
    return ranks.slots + (parity * ranks.words.shape[0] + rank) * ranks.slot_bytes


@compiled
def _arrive(ranks):
    # ORDER: exchange - what this rank wrote to its slot stands before this addition.
    num_arrivals = add(ranks.shared, ARRIVALS, 1) + 1
    if num_arrivals == (ranks.words[ranks.rank, PASSED] + 1) * ranks.words.shape[0]:
        add(ranks.shared, MEETINGS, 1)
        if get(ranks.shared, SLEEPING):
            wake_shared(ranks.shared, MEETINGS)


@compiled
def _await_others(ranks):
    """Whether the meeting is over to which this rank has come; if not, a timeout or a signal has ended the sleep."""
    own = ranks.words[ranks.rank]
    before = own[PASSED]
    since, patience = clock(), own[PATIENCE]
    spins = 0
    while get(ranks.shared, MEETINGS) == before and clock() - since < patience:
        spins += 1
        if spins % _SPINS_PER_YIELD:
            pause()
        else:
            _let_others_run()
    if get(ranks.shared, MEETINGS) == before:
        add(ranks.shared, SLEEPING, 1)
        wait_shared(ranks.shared, MEETINGS, before, ranks.call[TIMEOUT_NS])
        add(ranks.shared, SLEEPING, -1)
        is_soon = clock() - since < 2 * LONGEST_SPIN
        longer = min(max(2 * patience, SHORTEST_SPIN), own[MOST_PATIENCE])
        own[PATIENCE] = longer if is_soon else min(max(patience // 2, SHORTEST_SPIN), own[MOST_PATIENCE])
        # ORDER: exchange - what the others wrote before they came is read behind this load.
        if get(ranks.shared, MEETINGS) == before:
            return False
    own[PASSED] = before + 1
    return True


@compiled
def _do_agree(ranks, parity):
    for rank in range(ranks.words.shape[0]):
        if ranks.words[rank, SIGNATURES + parity] != ranks.words[ranks.rank, SIGNATURES + parity]:
            return False
    return True


@compiled
def exchange(ranks):
    """The first NUM_GIVERS ranks give SIZE bytes each, from SOURCE; this rank takes those of NUM_TAKEN ranks to TARGET,
    each STRIDE bytes behind the one before."""
    call = ranks.call
    parity = ranks.words[ranks.rank, CALLS] & 1
    if call[STAGE] == _BEGIN:
        ranks.words[ranks.rank, SIGNATURES + parity] = call[WHAT]
        if ranks.rank < call[NUM_GIVERS]:
            _copy(_slot(ranks, parity, ranks.rank), call[SOURCE], call[SIZE])
        _arrive(ranks)
        call[STAGE] = _FIRST
    if not _await_others(ranks):
        return WAITING
    if not _do_agree(ranks, parity):
        return DISAGREEMENT
    for rank in range(call[NUM_TAKEN]):
        _copy(call[TARGET] + rank * call[STRIDE], _slot(ranks, parity, rank), call[SIZE])
    ranks.words[ranks.rank, CALLS] += 1
    return DONE


@compiled
def sum_up(ranks):
    """SIZE elements at TARGET become their sums over the ranks: float32, or bfloat16 rounded once."""
    call = ranks.call
    x, count, kind, has_shares = call[TARGET], call[SIZE], call[STRIDE], call[NUM_GIVERS] > 0
    parity = ranks.words[ranks.rank, CALLS] & 1
    own_slot = _slot(ranks, parity, ranks.rank)
    num_ranks = ranks.words.shape[0]
    share = -(-count // (num_ranks * _LINE)) * _LINE
    if call[STAGE] == _BEGIN:
        ranks.words[ranks.rank, SIGNATURES + parity] = call[WHAT]
        _copy(own_slot, x, count * kind)
        _arrive(ranks)
        call[STAGE] = _FIRST
    if not _await_others(ranks):
        return WAITING
    if call[STAGE] == _FIRST:
        if not _do_agree(ranks, parity):
            return DISAGREEMENT
        if has_shares:
            first = min(share * ranks.rank, count)
            _add_slots(ranks, parity, kind, first, min(first + share, count), own_slot + first * kind)
            _arrive(ranks)
            call[STAGE] = _SECOND
            if not _await_others(ranks):
                return WAITING
        else:
            _add_slots(ranks, parity, kind, 0, count, x)
    if has_shares:
        for rank in range(num_ranks):
            first = min(share * rank, count)
            end = min(first + share, count)
            _copy(x + first * kind, _slot(ranks, parity, rank) + first * kind, (end - first) * kind)
    ranks.words[ranks.rank, CALLS] += 1
    return DONE


@compiled
def _add_slots(ranks, parity, kind, first, end, target):
    """Elements first .. end - 1 of all slots, added, to `target`. That may be where this rank's own are."""
    for begin in range(first, end, SCRATCH):
        size = min(SCRATCH, end - begin)
        sums = ranks.scratch[:size]
        for rank in range(ranks.words.shape[0]):
            address = _slot(ranks, parity, rank) + begin * kind
            if kind == SUM_FLOAT32:
                _add_to(sums, floats_at(address, size), rank == 0)
            else:
                _add_to(sums, words_at(address, size), rank == 0)
        if kind == SUM_FLOAT32:
            _round_to(floats_at(target + (begin - first) * kind, size), sums)
        else:
            _round_to(words_at(target + (begin - first) * kind, size), sums)


@compiled
def _add_to(sums, numbers, is_first):
    if is_first:
        for i in range(sums.size):
            sums[i] = widen(numbers[i])
    else:
        for i in range(sums.size):
            sums[i] += widen(numbers[i])


@compiled
def _round_to(target, sums):
    for i in range(sums.size):
        target[i] = narrow(target[i], sums[i])
