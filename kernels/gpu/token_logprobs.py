"""Log-probabilities of the chosen token and of the most likely ones, for the rows that ask for them.

    logprob[j] = x[j] - max x - log sum exp(x - max x),   float32

x are the model's own logits, or what the row samples from if it wants these: `kernels.sampling.processed_logits`. The
most likely come in descending order, ties by ascending id. Twin: `kernels.logprobs.gather_logprobs`; tolerance 1e-5.

Each program takes a chunk of fixed size, whatever the batch, so sums do not depend on it; the last one puts them
together.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import has_dependent_launch
from .row_logits import NO_ID, best_of, follow, is_last_arrival, load_logits, read_float, read_int
from .sampling_rows import LOGPROB_CHUNK, NUM_COLUMNS, Column, Flag, SamplingWorkspace

_NUM_COLUMNS = tl.constexpr(NUM_COLUMNS)
_TEMPERATURE, _NUM_TOP = tl.constexpr(int(Column.TEMPERATURE)), tl.constexpr(int(Column.NUM_TOP))
_FLAGS, _PROCESSED, _CHANGED = (
    tl.constexpr(int(Column.FLAGS)),
    tl.constexpr(int(Flag.PROCESSED_LOGPROBS)),
    tl.constexpr(int(Flag.CHANGED)),
)
_MIN_TEMPERATURE = tl.constexpr(1e-37)
"""As in `kernels.sampling`."""


@triton.jit
def _wanted(
    own, changed, is_changed, is_processed, maximum, temperature, threshold, ids, vocab_size, HAS_CHANGES: tl.constexpr
):
    """float32: what the row wants the log-probabilities of."""
    if is_processed:
        logits = load_logits(own, changed, is_changed, ids, vocab_size, HAS_CHANGES)
        logits = tl.div_rn(logits - maximum, temperature)
        logits = tl.where((logits >= threshold) & (ids < vocab_size), logits, float("-inf"))
    else:
        logits = tl.load(own + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    return logits


@triton.jit(do_not_specialize=["num_table_rows", "num_chunks"], do_not_specialize_on_alignment=["rows"])
def _token_logprobs(
    logits,
    row_stride,
    changed,
    rows,
    table,
    num_table_rows,
    row_max,
    thresholds,
    tokens,
    chunk_sums,
    chunk_values,
    chunk_ids,
    arrived,
    logprobs,
    top_ids,
    top_logprobs,
    vocab_size,
    num_chunks,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    MAX_TOP: tl.constexpr,
    HAS_CHANGES: tl.constexpr,
    HAS_FILTERS: tl.constexpr,
    PDL: tl.constexpr,
):
    follow(PDL)
    place, chunk = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + place)
    if (row < 0) | (row >= num_table_rows):
        return
    num_top = tl.minimum(read_int(table, row, _NUM_TOP, _NUM_COLUMNS), MAX_TOP)
    if num_top < 0:
        return
    flags = read_int(table, row, _FLAGS, _NUM_COLUMNS)
    is_processed, is_changed = (flags & _PROCESSED) != 0, (flags & _CHANGED) != 0
    own = logits + place.to(tl.int64) * row_stride
    changed += place.to(tl.int64) * vocab_size
    maximum = tl.load(row_max + place)
    temperature = read_float(table, row, _TEMPERATURE, _NUM_COLUMNS)
    temperature = tl.where(temperature == 0.0, 1.0, tl.maximum(temperature, _MIN_TEMPERATURE))
    threshold = float("-inf")
    if HAS_FILTERS:
        threshold = tl.load(thresholds + place)

    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    x = _wanted(own, changed, is_changed, is_processed, maximum, temperature, threshold, ids, vocab_size, HAS_CHANGES)
    highest = tl.max(x, 0)
    total = tl.sum(tl.exp(x - tl.where(highest == float("-inf"), 0.0, highest)), 0)
    at = (place * CHUNKS + chunk).to(tl.int64)
    tl.store(chunk_sums + at * 2, highest)
    tl.store(chunk_sums + at * 2 + 1, total)
    left = tl.where(ids < vocab_size, ids, NO_ID)
    for i in range(num_top):
        value, token = best_of(tl.where(left == NO_ID, float("-inf"), x), left)
        tl.store(chunk_values + at * MAX_TOP + i, value)
        tl.store(chunk_ids + at * MAX_TOP + i, token)
        left = tl.where(left == token, NO_ID, left)

    if is_last_arrival(arrived, place, num_chunks):
        base = place.to(tl.int64) * CHUNKS
        chunks = tl.arange(0, CHUNKS)
        seen = chunks < num_chunks
        maxima = tl.load(chunk_sums + (base + chunks) * 2, mask=seen, other=float("-inf"), cache_modifier=".cg")
        totals = tl.load(chunk_sums + (base + chunks) * 2 + 1, mask=seen, other=0.0, cache_modifier=".cg")
        highest = tl.max(maxima, 0)
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        log_total = tl.log(tl.sum(totals * tl.exp(maxima - shift), 0))
        token = tl.load(tokens + place)
        chosen = _wanted(
            own, changed, is_changed, is_processed, maximum, temperature, threshold, token, vocab_size, HAS_CHANGES
        )  # fmt: skip
        tl.store(logprobs + place, chosen - shift - log_total)
        entries = tl.arange(0, CHUNKS * MAX_TOP)
        is_there = (entries // MAX_TOP < num_chunks) & (entries % MAX_TOP < num_top)
        where = base * MAX_TOP + entries
        values = tl.load(chunk_values + where, mask=is_there, other=float("-inf"), cache_modifier=".cg")
        others = tl.load(chunk_ids + where, mask=is_there, other=NO_ID, cache_modifier=".cg")
        for i in range(num_top):
            value, token = best_of(tl.where(others == NO_ID, float("-inf"), values), others)
            tl.store(top_ids + place * MAX_TOP + i, tl.minimum(token, vocab_size - 1))
            tl.store(top_logprobs + place * MAX_TOP + i, value - shift - log_total)
            others = tl.where(others == token, NO_ID, others)


def token_logprobs(
    logits: Tensor,
    changed: Tensor | None,
    rows: Tensor,
    table: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    top_ids: Tensor,
    top_logprobs: Tensor,
    workspace: SamplingWorkspace,
    *,
    has_filters: bool,
) -> None:
    """Arguments as those of `draw.draw_rows`, which has run; logprobs: float32 [n], top_ids: int32 [n, MAX_TOP],
    top_logprobs: float32 [n, MAX_TOP], written where a row asks, the first `Column.NUM_TOP` of a row's (cut to the
    vocabulary by who reads them). A row that wants more than MAX_TOP gets MAX_TOP."""
    num_places, vocab_size = logits.shape
    pdl = has_dependent_launch(logits.device)
    _, chunks, max_top = workspace.chunk_ids.shape
    num_chunks = triton.cdiv(vocab_size, LOGPROB_CHUNK)
    _token_logprobs[(num_places, num_chunks)](
        logits,
        logits.stride(0),
        logits if changed is None else changed,
        rows,
        table,
        table.shape[0],
        workspace.row_max,
        workspace.thresholds,
        tokens,
        workspace.chunk_sums,
        workspace.chunk_values,
        workspace.chunk_ids,
        workspace.arrived,
        logprobs,
        top_ids,
        top_logprobs,
        vocab_size,
        num_chunks,
        CHUNKS=chunks,
        CHUNK=LOGPROB_CHUNK,
        MAX_TOP=max_top,
        HAS_CHANGES=changed is not None,
        HAS_FILTERS=has_filters,
        PDL=pdl,
        num_warps=8,
        launch_pdl=pdl,
    )
