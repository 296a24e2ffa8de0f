"""Parts that the sampling kernels share: a place's row, its logits, the winner among the programs of a row."""

from __future__ import annotations

import triton
import triton.language as tl

NO_ID = tl.constexpr(0x7FFFFFFF)
"""Above every token id."""


@triton.jit
def follow(PDL: tl.constexpr):
    """First of all in a kernel: wait until the kernel before has ended, and let the next one be set up meanwhile."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def read_int(table, row, COLUMN: tl.constexpr, NUM_COLUMNS: tl.constexpr):
    """int32 parameter of a row."""
    return tl.load(table + row.to(tl.int64) * NUM_COLUMNS + COLUMN)


@triton.jit
def read_float(table, row, COLUMN: tl.constexpr, NUM_COLUMNS: tl.constexpr):
    """float32 parameter of a row."""
    return tl.load(table + row.to(tl.int64) * NUM_COLUMNS + COLUMN).to(tl.float32, bitcast=True)


@triton.jit
def load_logits(own, changed, is_changed, ids, vocab_size, HAS_CHANGES: tl.constexpr):
    """float32, -inf outside the vocabulary. own, changed: pointers to the place's first logit."""
    if HAS_CHANGES:
        if is_changed:
            logits = tl.load(changed + ids, mask=ids < vocab_size, other=float("-inf"))
        else:
            logits = tl.load(own + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    else:
        logits = tl.load(own + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    return logits


@triton.jit
def best_of(values, ids):
    """(the largest value, the lowest of its ids), NO_ID if all values are NaN."""
    best = tl.max(values, 0)
    return best, tl.min(tl.where(values == best, ids, NO_ID), 0)


@triton.jit
def is_last_arrival(arrived, place, num_programs):
    """Whether this is the last of the place's programs to come here. What the others stored before is visible to it;
    the counter is set back for the next kernel."""
    tl.debug_barrier()  # every thread has stored before one of them counts
    is_last = tl.atomic_add(arrived + place, 1, sem="acq_rel") == num_programs - 1
    if is_last:
        tl.store(arrived + place, 0)
    return is_last
