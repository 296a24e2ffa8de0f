"""Arg max of each row of logits, ties to the lowest id: all that a greedy step needs, in one pass.

    token[i] = min { j : logits[i, j] = max logits[i] },   row_max[i] = max logits[i], 0 if that is -inf

logits: float32 or bfloat16 [n, vocab]. Exact. A row's programs each find the best of a part; the last one to end
compares. Twin: torch's argmax and amax.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import has_dependent_launch, num_sms
from .row_logits import NO_ID, best_of, follow, is_last_arrival, load_logits, read_int
from .sampling_rows import NUM_COLUMNS, Column, Flag, SamplingWorkspace, num_splits

_NUM_COLUMNS, _FLAGS, _CHANGED = (
    tl.constexpr(NUM_COLUMNS),
    tl.constexpr(int(Column.FLAGS)),
    tl.constexpr(int(Flag.CHANGED)),
)


@triton.jit(
    do_not_specialize=["num_table_rows", "blocks_per_program", "num_programs"], do_not_specialize_on_alignment=["rows"]
)
def _argmax(
    logits,
    row_stride,
    changed,
    rows,
    table,
    num_table_rows,
    partial_values,
    partial_ids,
    arrived,
    row_max,
    most_likely,
    tokens,
    vocab_size,
    blocks_per_program,
    num_programs,
    MAX_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_CHANGES: tl.constexpr,
    PDL: tl.constexpr,
):
    follow(PDL)
    place, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + place)
    if (row < 0) | (row >= num_table_rows):
        return
    is_changed = False
    if HAS_CHANGES:
        is_changed = (read_int(table, row, _FLAGS, _NUM_COLUMNS) & _CHANGED) != 0
    own = logits + place.to(tl.int64) * row_stride
    changed += place.to(tl.int64) * vocab_size
    first = part * blocks_per_program * BLOCK
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_ids = tl.full((BLOCK,), NO_ID, tl.int32)
    for block in range(blocks_per_program):
        ids = first + block * BLOCK + tl.arange(0, BLOCK)
        found = load_logits(own, changed, is_changed, ids, vocab_size, HAS_CHANGES)
        is_better = (found > best) | ((best_ids == NO_ID) & (found == best) & (ids < vocab_size))
        best = tl.where(is_better, found, best)
        best_ids = tl.where(is_better, ids, best_ids)
    value, token = best_of(best, best_ids)
    tl.store(partial_values + place * MAX_SPLITS + part, value)
    tl.store(partial_ids + place * MAX_SPLITS + part, token)
    if is_last_arrival(arrived, place, num_programs):
        parts = tl.arange(0, MAX_SPLITS)
        at, seen = place * MAX_SPLITS + parts, parts < num_programs
        values = tl.load(partial_values + at, mask=seen, other=float("-inf"), cache_modifier=".cg")
        candidates = tl.load(partial_ids + at, mask=seen, other=NO_ID, cache_modifier=".cg")
        value, token = best_of(values, candidates)
        token = tl.minimum(token, vocab_size - 1)
        tl.store(row_max + place, tl.where(value == float("-inf"), 0.0, value))
        tl.store(most_likely + place, token)
        tl.store(tokens + place, token)


def argmax_rows(
    logits: Tensor, changed: Tensor | None, rows: Tensor, table: Tensor, tokens: Tensor, workspace: SamplingWorkspace
) -> None:
    """logits: [n, vocab] float32 or bfloat16, rows dense; changed: float32 [>= n, vocab], what flagged rows have in
    their place; rows: int32 [n]; table: int32 [num_rows, NUM_COLUMNS]; tokens: int32 [n], written, as is the workspace.
    Places of padding are left as they are."""
    num_places, vocab_size = logits.shape
    pdl = has_dependent_launch(logits.device)
    block = 1024 if num_places <= 8 else 4096
    splits = num_splits(num_places, vocab_size, block, 8 * num_sms(logits.device))
    blocks = triton.cdiv(triton.cdiv(vocab_size, block), splits)
    splits = triton.cdiv(triton.cdiv(vocab_size, block), blocks)
    _argmax[(num_places, splits)](
        logits,
        logits.stride(0),
        logits if changed is None else changed,
        rows,
        table,
        table.shape[0],
        workspace.partial_values,
        workspace.partial_ids,
        workspace.arrived,
        workspace.row_max,
        workspace.most_likely,
        tokens,
        vocab_size,
        blocks,
        splits,
        MAX_SPLITS=workspace.partial_values.shape[1],
        BLOCK=block,
        HAS_CHANGES=changed is not None,
        PDL=pdl,
        num_warps=4 if block == 1024 else 8,
        launch_pdl=pdl,
    )
