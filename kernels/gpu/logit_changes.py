"""Bias and penalties of the rows that have any: from the model's logits into rows of changed ones, in float32.

    l = logits[j] + bias[j];   where the token is used:  l = l / repetition if l > 0 else l * repetition,
    l = l - frequency * count - presence * (count > 0),  at most the largest float32

The formulas, their order and what counts as used are those of `kernels.masks` and `kernels.penalties`, the twins; exact
The model's logits stay as they are, in whatever dtype, for log-probabilities; rows without changes are not copied.

counts: int32 [num_rows, vocab], how often each token stands in the output of a row that is penalised; the sign bit says
that it stands in the prompt, where that matters. `count_tokens` adds a step's tokens, so that the host is not asked.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import has_dependent_launch
from .row_logits import follow, read_float, read_int
from .sampling_rows import NUM_COLUMNS, Column, Flag

IN_PROMPT = -(2**31)
"""The sign bit of a count."""
_NUM_COLUMNS = tl.constexpr(NUM_COLUMNS)
_FLAGS, _NUM_BIAS = tl.constexpr(int(Column.FLAGS)), tl.constexpr(int(Column.NUM_BIAS))
_CHANGED, _PENALIZED = tl.constexpr(int(Flag.CHANGED)), tl.constexpr(int(Flag.PENALIZED))
_REPETITION, _FREQUENCY = tl.constexpr(int(Column.REPETITION)), tl.constexpr(int(Column.FREQUENCY))
_PRESENCE = tl.constexpr(int(Column.PRESENCE))
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
_BIAS_BLOCK = tl.constexpr(128)


@triton.jit
def _penalized(logits, counts, repetition, frequency, presence):
    times = (counts & 0x7FFFFFFF).to(tl.float32)
    penalized = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
    penalized -= times * frequency
    penalized -= tl.where(times > 0, presence, 0.0)
    return tl.where(counts == 0, logits, tl.minimum(penalized, _LARGEST))


@triton.jit(do_not_specialize=["num_table_rows", "max_bias"], do_not_specialize_on_alignment=["rows"])
def _change(
    logits,
    row_stride,
    changed,
    rows,
    table,
    num_table_rows,
    counts,
    bias_ids,
    bias,
    vocab_size,
    max_bias,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    follow(PDL)
    place, block = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + place)
    if (row < 0) | (row >= num_table_rows):
        return
    flags = read_int(table, row, _FLAGS, _NUM_COLUMNS)
    if (flags & _CHANGED) == 0:
        return
    is_penalized = (flags & _PENALIZED) != 0
    repetition = read_float(table, row, _REPETITION, _NUM_COLUMNS)
    frequency = read_float(table, row, _FREQUENCY, _NUM_COLUMNS)
    presence = read_float(table, row, _PRESENCE, _NUM_COLUMNS)
    own = logits + place.to(tl.int64) * row_stride
    changed += place.to(tl.int64) * vocab_size
    counts += row.to(tl.int64) * vocab_size
    first = block * BLOCK
    ids = first + tl.arange(0, BLOCK)
    found = tl.load(own + ids, mask=ids < vocab_size, other=0.0).to(tl.float32)
    used = tl.load(counts + ids, mask=(ids < vocab_size) & is_penalized, other=0)
    tl.store(changed + ids, _penalized(found, used, repetition, frequency, presence), mask=ids < vocab_size)
    num_bias = read_int(table, row, _NUM_BIAS, _NUM_COLUMNS)
    if num_bias > 0:
        tl.debug_barrier()  # behind the stores above, which these go over
        for start in range(0, num_bias, _BIAS_BLOCK):
            entries = start + tl.arange(0, _BIAS_BLOCK)
            at = row.to(tl.int64) * max_bias + entries
            token = tl.load(bias_ids + at, mask=entries < num_bias, other=-1)
            is_here = (token >= first) & (token < first + BLOCK) & (token < vocab_size)
            biased = tl.load(own + token, mask=is_here, other=0.0).to(tl.float32)
            biased += tl.load(bias + at, mask=is_here, other=0.0)
            times = tl.load(counts + token, mask=is_here & is_penalized, other=0)
            tl.store(changed + token, _penalized(biased, times, repetition, frequency, presence), mask=is_here)


@triton.jit(do_not_specialize=["num_table_rows", "num_places"], do_not_specialize_on_alignment=["rows"])
def _count(tokens, rows, table, num_table_rows, counts, num_places, vocab_size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    follow(PDL)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + places, mask=places < num_places, other=-1)
    is_row = (row >= 0) & (row < num_table_rows)
    flags = tl.load(table + row.to(tl.int64) * _NUM_COLUMNS + _FLAGS, mask=is_row, other=0)
    is_counted = (flags & _PENALIZED) != 0
    token = tl.load(tokens + places, mask=is_counted, other=0)
    at = row.to(tl.int64) * vocab_size + token
    times = tl.load(counts + at, mask=is_counted, other=0)
    tl.store(counts + at, times + 1, mask=is_counted)


def change_logits(
    logits: Tensor, changed: Tensor, rows: Tensor, table: Tensor, counts: Tensor, bias_ids: Tensor, bias: Tensor
) -> None:
    """logits: [n, vocab] float32 or bfloat16, rows dense; changed: float32 [>= n, vocab], written where the row at a
    place has `Flag.CHANGED`; rows: int32 [n]; table: int32 [num_rows, NUM_COLUMNS]; counts: int32 [num_rows, vocab];
    bias_ids: int32 [num_rows, max_bias], bias: float32 of that shape, `Column.NUM_BIAS` entries with distinct ids."""
    num_places, vocab_size = logits.shape
    pdl = has_dependent_launch(logits.device)
    block = 4096
    _change[(num_places, triton.cdiv(vocab_size, block))](
        logits,
        logits.stride(0),
        changed,
        rows,
        table,
        table.shape[0],
        counts,
        bias_ids,
        bias,
        vocab_size,
        bias_ids.shape[1],
        BLOCK=block,
        PDL=pdl,
        num_warps=8,
        launch_pdl=pdl,
        enable_fp_fusion=False,  # each product is rounded, as in the twin
    )


def count_tokens(tokens: Tensor, rows: Tensor, table: Tensor, counts: Tensor) -> None:
    """Add tokens, int32 [n], to the counts of their rows, int32 [n], distinct, where these have `Flag.PENALIZED`."""
    pdl = has_dependent_launch(tokens.device)
    _count[(triton.cdiv(rows.shape[0], 128),)](
        tokens,
        rows,
        table,
        table.shape[0],
        counts,
        rows.shape[0],
        counts.shape[1],
        BLOCK=128,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )
