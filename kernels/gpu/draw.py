"""Draw a token of each row that samples: arg max over the tokens that its filters keep of processed logit + noise.

    score[j] = (logits[j] - row_max) / temperature + noise(seed, j, index, choice),   kept where the first term >=
    threshold;  token = min { j : score[j] = max score }

The twin is `kernels.sampling.sample`. Exact but for noise (see `philox`): on a GPU, scores are torch's bit by bit.

Noise has a largest value, so a block whose logits are too low to win, with it, against the best score so far is left
out. The first candidate is the most likely token: where it is far above the others, little noise is made.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import has_dependent_launch, num_sms
from .philox import MAX_NOISE, gumbel_block, gumbel_token
from .row_logits import NO_ID, best_of, follow, is_last_arrival, load_logits, read_float, read_int
from .sampling_rows import NUM_COLUMNS, Column, Flag, SamplingWorkspace, num_splits

_NUM_COLUMNS = tl.constexpr(NUM_COLUMNS)
_TEMPERATURE = tl.constexpr(int(Column.TEMPERATURE))
_SEED_LOW, _SEED_HIGH = tl.constexpr(int(Column.SEED_LOW)), tl.constexpr(int(Column.SEED_HIGH))
_CHOICE, _INDEX_ORIGIN = tl.constexpr(int(Column.CHOICE)), tl.constexpr(int(Column.INDEX_ORIGIN))
_FLAGS, _CHANGED = tl.constexpr(int(Column.FLAGS)), tl.constexpr(int(Flag.CHANGED))
_MIN_TEMPERATURE = tl.constexpr(1e-37)
"""As in `kernels.sampling`."""


@triton.jit(
    do_not_specialize=["num_table_rows", "blocks_per_program", "num_programs"],
    do_not_specialize_on_alignment=["rows", "positions"],
)
def _draw(
    logits,
    row_stride,
    changed,
    rows,
    positions,
    table,
    num_table_rows,
    row_max,
    most_likely,
    thresholds,
    partial_values,
    partial_ids,
    arrived,
    tokens,
    vocab_size,
    blocks_per_program,
    num_programs,
    MAX_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_CHANGES: tl.constexpr,
    HAS_FILTERS: tl.constexpr,
    PDL: tl.constexpr,
):
    follow(PDL)
    place, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + place)
    if (row < 0) | (row >= num_table_rows):
        return
    temperature = read_float(table, row, _TEMPERATURE, _NUM_COLUMNS)
    if temperature == 0.0:
        return  # the arg max is there already
    temperature = tl.maximum(temperature, _MIN_TEMPERATURE)
    key_low = read_int(table, row, _SEED_LOW, _NUM_COLUMNS).to(tl.uint32, bitcast=True)
    key_high = read_int(table, row, _SEED_HIGH, _NUM_COLUMNS).to(tl.uint32, bitcast=True)
    choice = read_int(table, row, _CHOICE, _NUM_COLUMNS).to(tl.uint32)
    index = (tl.load(positions + place) + 1 - read_int(table, row, _INDEX_ORIGIN, _NUM_COLUMNS)).to(tl.uint32)
    is_changed = False
    if HAS_CHANGES:
        is_changed = (read_int(table, row, _FLAGS, _NUM_COLUMNS) & _CHANGED) != 0
    own = logits + place.to(tl.int64) * row_stride
    changed += place.to(tl.int64) * vocab_size
    maximum = tl.load(row_max + place)
    threshold = float("-inf")
    if HAS_FILTERS:
        threshold = tl.load(thresholds + place)
    token = tl.load(most_likely + place)
    best = gumbel_token(token, index, choice, key_low, key_high)
    for block in range(blocks_per_program):
        first = (part * blocks_per_program + block) * BLOCK
        ids = first + tl.arange(0, BLOCK)
        found = load_logits(own, changed, is_changed, ids, vocab_size, HAS_CHANGES)
        processed = tl.div_rn(found - maximum, temperature)
        is_kept = (processed >= threshold) & (ids < vocab_size)
        if tl.max(tl.where(is_kept, processed, float("-inf")), 0) + MAX_NOISE >= best:
            scores = processed + gumbel_block(first, index, choice, key_low, key_high, BLOCK)
            score, winner = best_of(tl.where(is_kept, scores, float("-inf")), ids)
            if (score > best) | ((score == best) & (winner < token)):
                best = score
                token = winner
    tl.store(partial_values + place * MAX_SPLITS + part, best)
    tl.store(partial_ids + place * MAX_SPLITS + part, token)
    if is_last_arrival(arrived, place, num_programs):
        parts = tl.arange(0, MAX_SPLITS)
        at, seen = place * MAX_SPLITS + parts, parts < num_programs
        values = tl.load(partial_values + at, mask=seen, other=float("-inf"), cache_modifier=".cg")
        candidates = tl.load(partial_ids + at, mask=seen, other=NO_ID, cache_modifier=".cg")
        _, token = best_of(values, candidates)
        tl.store(tokens + place, tl.minimum(token, vocab_size - 1))


def draw_rows(
    logits: Tensor,
    changed: Tensor | None,
    rows: Tensor,
    positions: Tensor,
    table: Tensor,
    tokens: Tensor,
    workspace: SamplingWorkspace,
    *,
    has_filters: bool,
) -> None:
    """Arguments as those of `argmax.argmax_rows`, which has run, and `thresholds.find_thresholds` if `has_filters`;
    positions: int64 or int32 [n], of the tokens whose logits these are. Greedy places and padding keep their tokens."""
    num_places, vocab_size = logits.shape
    pdl = has_dependent_launch(logits.device)
    block = 1024 if num_places <= 8 else 2048
    splits = num_splits(num_places, vocab_size, block, 8 * num_sms(logits.device))
    blocks = triton.cdiv(triton.cdiv(vocab_size, block), splits)
    splits = triton.cdiv(triton.cdiv(vocab_size, block), blocks)
    _draw[(num_places, splits)](
        logits,
        logits.stride(0),
        logits if changed is None else changed,
        rows,
        positions,
        table,
        table.shape[0],
        workspace.row_max,
        workspace.most_likely,
        workspace.thresholds,
        workspace.partial_values,
        workspace.partial_ids,
        workspace.arrived,
        tokens,
        vocab_size,
        blocks,
        splits,
        MAX_SPLITS=workspace.partial_values.shape[1],
        BLOCK=block,
        HAS_CHANGES=changed is not None,
        HAS_FILTERS=has_filters,
        PDL=pdl,
        num_warps=4 if block == 1024 else 8,
        launch_pdl=pdl,
    )
