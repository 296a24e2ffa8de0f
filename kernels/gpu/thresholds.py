"""min_p, top_k and top_p of each row as the least processed logit that is kept, without sorting the vocabulary.

The formulas, and what happens to ties, are those of `kernels.filters`, the twin. Here a logit is its depth below the
row's maximum, (maximum - logit) / temperature >= 0, taken as the 31 bits of a float32: these order as the floats do, so
the depth of a border is an integer that is searched for, between `low` (excluded) and `high`:

    top_k: the least depth d with  #{depth <= d} >= k
    top_p: the least depth d with  sum of exp(-depth) over depth <= d  >=  top_p * the sum over what the others left

Each pass over the row counts, or sums up, what lies above eight depths at once. Few passes leave at most
MAX_CANDIDATES tokens between `low` and `high`: these are gathered, and the border is found among them by bisection.

Tolerance: top_k and min_p are exact; sums are float32, relative error 1e-6, so a border that a sum meets to within this
may be the next token's.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import has_dependent_launch
from .row_logits import follow, read_float, read_int
from .sampling_rows import NUM_COLUMNS, Column, Flag, SamplingWorkspace

_NUM_COLUMNS = tl.constexpr(NUM_COLUMNS)
_TEMPERATURE, _TOP_K = tl.constexpr(int(Column.TEMPERATURE)), tl.constexpr(int(Column.TOP_K))
_TOP_P, _MIN_LOGIT = tl.constexpr(int(Column.TOP_P)), tl.constexpr(int(Column.MIN_LOGIT))
_FLAGS, _CHANGED = tl.constexpr(int(Column.FLAGS)), tl.constexpr(int(Flag.CHANGED))
_INFINITE = tl.constexpr(0x7F800000)
"""The bits of infinity, the depth of what is impossible."""
_MIN_TEMPERATURE = tl.constexpr(1e-37)
"""As in `kernels.sampling`."""
_STAGES = tl.constexpr(5)
"""Blocks that are on their way at once: one program keeps its multiprocessor's share of the memory busy."""
_NUM_PIVOTS = tl.constexpr(8)
_USUAL_DEPTH = tl.constexpr(32.0)
"""Where the first pass looks for a border that may be anywhere: e^-32 is no probability."""
_NUM_EVEN_PASSES = tl.constexpr(6)
"""Pivots are even in depth as long as that does well, then even in the bits, which comes to an end on any row."""


@triton.jit
def depth_bits(logits, maximum, temperature):
    """int32 [...]: the bits of the depth; those of NaN are above infinity's."""
    return tl.div_rn(maximum - logits, temperature).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _measure(logits, maximum, temperature, vocab_size, pivots, BLOCK: tl.constexpr):
    """(how many, sum of exp(-depth)) of the depths <= each pivot: float32 [_NUM_PIVOTS] each."""
    counts = tl.zeros((_NUM_PIVOTS, BLOCK), tl.float32)
    sums = tl.zeros((_NUM_PIVOTS, BLOCK), tl.float32)
    for first in tl.range(0, vocab_size, BLOCK, num_stages=_STAGES):
        ids = first + tl.arange(0, BLOCK)[None, :]
        found = tl.load(logits + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        bits = tl.where(ids < vocab_size, depth_bits(found, maximum, temperature), 0x7FFFFFFF)
        weights = tl.exp(-bits.to(tl.float32, bitcast=True))
        is_above = bits <= pivots[:, None]
        counts += tl.where(is_above, 1.0, 0.0)
        sums += tl.where(is_above, weights, 0.0)
    return tl.sum(counts, 1), tl.sum(sums, 1)


@triton.jit
def _pivots(low, high, num_passes):
    """int32 [_NUM_PIVOTS] above `low`, ascending, the last of them `high`."""
    steps = tl.arange(0, _NUM_PIVOTS) + 1
    low_depth = tl.maximum(low, 0).to(tl.float32, bitcast=True)
    high_depth = high.to(tl.float32, bitcast=True)
    if num_passes == 0:
        high_depth = tl.minimum(high_depth, _USUAL_DEPTH)
    even = low_depth + (high_depth - low_depth) * (steps.to(tl.float32) * (1.0 / _NUM_PIVOTS))
    even_bits = even.to(tl.int32, bitcast=True)
    by_bits = low + ((high - low).to(tl.int64) * steps // _NUM_PIVOTS).to(tl.int32)
    is_even = (num_passes < _NUM_EVEN_PASSES) & (high_depth <= _USUAL_DEPTH)
    inner = tl.minimum(tl.maximum(tl.where(is_even, even_bits, by_bits), low + 1), high)
    return tl.where(steps == _NUM_PIVOTS, high, inner)


@triton.jit
def _gather(
    logits, maximum, temperature, vocab_size, low, high, candidates, BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr
):
    """int32 [MAX_CANDIDATES]: depths above `low` up to `high`, which are so few, then some above `high`."""
    tl.debug_barrier()  # the list before is read
    num_found = 0
    for first in tl.range(0, vocab_size, BLOCK, num_stages=_STAGES):
        ids = first + tl.arange(0, BLOCK)
        found = tl.load(logits + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        bits = depth_bits(found, maximum, temperature)
        is_found = (bits > low) & (bits <= high) & (ids < vocab_size)
        num_new = tl.sum(is_found.to(tl.int32), 0)
        if num_new > 0:
            at = num_found + tl.cumsum(is_found.to(tl.int32), 0) - 1
            tl.store(candidates + at, bits, mask=is_found)
        num_found += num_new
    tl.debug_barrier()  # the list is written
    at = tl.arange(0, MAX_CANDIDATES)
    return tl.load(candidates + at, mask=at < num_found, other=0x7FFFFFFF)


@triton.jit
def _bisect(depths, low, high, reached, target, BY_SUM: tl.constexpr):
    """The least depth d in low + 1 .. high with reached + measure of depths <= d >= target, `high` if there is none."""
    measures = tl.exp(-depths.to(tl.float32, bitcast=True)) if BY_SUM else tl.full(depths.shape, 1.0, tl.float32)
    while high - low > 1:
        middle = low + (high - low) // 2
        if reached + tl.sum(tl.where(depths <= middle, measures, 0.0), 0) >= target:
            high = middle
        else:
            low = middle
    return high


@triton.jit
def _search(
    logits, maximum, temperature, vocab_size, limit, target, candidates,
    BY_SUM: tl.constexpr, BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
):  # fmt: skip
    """int32: depth of the border among depths <= limit. target: a count, or a share of the sum of all these."""
    low, high = tl.full((), -1, tl.int32), limit
    num_between, num_low, sum_low = vocab_size * 1.0, 0.0, 0.0
    num_passes = 0
    # A sum's target needs the sum of all, so that there is one pass at least.
    while (num_between > MAX_CANDIDATES) & (high - low > 1) | (num_passes == 0) & BY_SUM:
        pivots = _pivots(low, high, num_passes)
        counts, sums = _measure(logits, maximum, temperature, vocab_size, pivots, BLOCK)
        if BY_SUM:
            if num_passes == 0:
                target = target * tl.max(sums, 0)
            is_reached = sums >= target
        else:
            is_reached = counts >= target
        num_high = tl.min(tl.where(is_reached, counts, vocab_size * 1.0), 0)
        num_low = tl.maximum(num_low, tl.max(tl.where(is_reached, 0.0, counts), 0))
        sum_low = tl.maximum(sum_low, tl.max(tl.where(is_reached, 0.0, sums), 0))
        low = tl.maximum(low, tl.max(tl.where(is_reached, low, pivots), 0))
        high = tl.minimum(high, tl.min(tl.where(is_reached, pivots, high), 0))
        num_between = num_high - num_low
        num_passes += 1
    if high - low > 1:
        depths = _gather(logits, maximum, temperature, vocab_size, low, high, candidates, BLOCK, MAX_CANDIDATES)
        high = _bisect(depths, low, high, sum_low if BY_SUM else num_low, target, BY_SUM)
    return high


@triton.jit
def _border(
    logits, maximum, temperature, vocab_size, limit, top_k, top_p, candidates,
    BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
):  # fmt: skip
    """int32: depth of the last token kept. logits: pointer to the row's first; limit: the depth that min_p gives."""
    border = limit
    if (top_k > 0) & (top_k < vocab_size):
        border = _search(
            logits, maximum, temperature, vocab_size, border, top_k * 1.0, candidates, False, BLOCK, MAX_CANDIDATES
        )  # fmt: skip
    if top_p < 1.0:
        border = _search(
            logits, maximum, temperature, vocab_size, border, top_p, candidates, True, BLOCK, MAX_CANDIDATES
        )  # fmt: skip
    return border


@triton.jit(do_not_specialize=["num_table_rows"], do_not_specialize_on_alignment=["rows"])
def _find_thresholds(
    logits,
    row_stride,
    changed,
    rows,
    table,
    num_table_rows,
    row_max,
    candidates,
    thresholds,
    vocab_size,
    HAS_CHANGES: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr,
    PDL: tl.constexpr,
):
    follow(PDL)
    place = tl.program_id(0)
    row = tl.load(rows + place)
    if (row < 0) | (row >= num_table_rows):
        return
    temperature = read_float(table, row, _TEMPERATURE, _NUM_COLUMNS)
    top_k = read_int(table, row, _TOP_K, _NUM_COLUMNS)
    top_p = read_float(table, row, _TOP_P, _NUM_COLUMNS)
    least = read_float(table, row, _MIN_LOGIT, _NUM_COLUMNS)
    is_changed = (read_int(table, row, _FLAGS, _NUM_COLUMNS) & _CHANGED) != 0
    logits += place.to(tl.int64) * row_stride
    changed += place.to(tl.int64) * vocab_size
    candidates += place.to(tl.int64) * MAX_CANDIDATES
    maximum = tl.load(row_max + place)
    border = (0.0 - least).to(tl.int32, bitcast=True)
    if temperature == 0.0:
        border = _INFINITE
    else:
        # Each branch has a pointer of one type, so that blocks can be on their way ahead of their use.
        temperature = tl.maximum(temperature, _MIN_TEMPERATURE)
        if HAS_CHANGES & is_changed:
            border = _border(
                changed, maximum, temperature, vocab_size, border, top_k, top_p, candidates, BLOCK, MAX_CANDIDATES
            )  # fmt: skip
        else:
            border = _border(
                logits, maximum, temperature, vocab_size, border, top_k, top_p, candidates, BLOCK, MAX_CANDIDATES
            )  # fmt: skip
    tl.store(thresholds + place, 0.0 - border.to(tl.float32, bitcast=True))


def find_thresholds(
    logits: Tensor, changed: Tensor | None, rows: Tensor, table: Tensor, workspace: SamplingWorkspace
) -> None:
    """Arguments as those of `argmax.argmax_rows`, which has run; `workspace.thresholds` is written, -inf where nothing
    is filtered. One program a row: sums do not depend on the batch."""
    num_places, vocab_size = logits.shape
    pdl = has_dependent_launch(logits.device)
    _find_thresholds[(num_places,)](
        logits,
        logits.stride(0),
        logits if changed is None else changed,
        rows,
        table,
        table.shape[0],
        workspace.row_max,
        workspace.candidates,
        workspace.thresholds,
        vocab_size,
        HAS_CHANGES=changed is not None,
        BLOCK=2048,
        MAX_CANDIDATES=workspace.candidates.shape[1],
        PDL=pdl,
        num_warps=16,
        launch_pdl=pdl,
    )
