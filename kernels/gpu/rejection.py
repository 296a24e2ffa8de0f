"""Verify each place's draft by rejection, and draw a token where one is rejected: two kernels.

    accept: total = sum of exp(processed[j]) over the tokens that filters keep, p = exp(processed) / total;
            the draft d stays if u(d) q(d) <= p(d) and p(d) > 0
    redraw: where it does not, token = min { j != d : score[j] = max score }, score = x + noise, x = log(max(p - q, 0))
            if the proposer drew the draft from q, float32 [n, vocab], else processed, where filters keep it

The twin is `kernels.rejection.verify`; tolerance: u q and p, and two scores, within 1e-5 of each other may be taken for
the other way round, as sums and logarithms are rounded otherwise. Sums are over chunks of fixed size, so that no row
depends on the others of its step. A place whose draft is accepted costs one pass over its logits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..noise import ACCEPT, RESIDUAL
from .launch import has_dependent_launch, num_sms
from .philox import gumbel_block, token_word, uniform
from .row_logits import NO_ID, best_of, follow, is_last_arrival, load_logits, read_float, read_int
from .sampling_rows import LOGPROB_CHUNK, NUM_COLUMNS, Column, Flag, SamplingWorkspace, num_splits

_NUM_COLUMNS = tl.constexpr(NUM_COLUMNS)
_TEMPERATURE = tl.constexpr(int(Column.TEMPERATURE))
_SEED_LOW, _SEED_HIGH = tl.constexpr(int(Column.SEED_LOW)), tl.constexpr(int(Column.SEED_HIGH))
_CHOICE, _INDEX_ORIGIN = tl.constexpr(int(Column.CHOICE)), tl.constexpr(int(Column.INDEX_ORIGIN))
_FLAGS, _CHANGED = tl.constexpr(int(Column.FLAGS)), tl.constexpr(int(Flag.CHANGED))
_ACCEPT, _RESIDUAL = tl.constexpr(ACCEPT), tl.constexpr(RESIDUAL)
_MIN_TEMPERATURE = tl.constexpr(1e-37)
"""As in `kernels.sampling`."""
_REJECTED = tl.constexpr(-1)
"""In place of a token, between the kernels."""


@triton.jit
def _processed(
    own, changed, is_changed, maximum, temperature, threshold, ids, vocab_size, HAS_CHANGES: tl.constexpr
):  # fmt: skip
    """float32: -inf where filters cut."""
    found = load_logits(own, changed, is_changed, ids, vocab_size, HAS_CHANGES)
    processed = tl.div_rn(found - maximum, tl.maximum(temperature, _MIN_TEMPERATURE))
    return tl.where((processed >= threshold) & (ids < vocab_size), processed, float("-inf"))


@triton.jit
def _is_changed(table, row, HAS_CHANGES: tl.constexpr):
    is_changed = False
    if HAS_CHANGES:
        is_changed = (read_int(table, row, _FLAGS, _NUM_COLUMNS) & _CHANGED) != 0
    return is_changed


@triton.jit
def _counters(table, row, positions, place):
    """(index, choice, key) of a place, uint32 each."""
    key_low = read_int(table, row, _SEED_LOW, _NUM_COLUMNS).to(tl.uint32, bitcast=True)
    key_high = read_int(table, row, _SEED_HIGH, _NUM_COLUMNS).to(tl.uint32, bitcast=True)
    choice = read_int(table, row, _CHOICE, _NUM_COLUMNS).to(tl.uint32)
    index = (tl.load(positions + place) + 1 - read_int(table, row, _INDEX_ORIGIN, _NUM_COLUMNS)).to(tl.uint32)
    return index, choice, key_low, key_high


@triton.jit(do_not_specialize=["num_table_rows", "num_chunks"], do_not_specialize_on_alignment=["rows", "positions"])
def _accept(
    logits,
    row_stride,
    changed,
    rows,
    positions,
    table,
    num_table_rows,
    drafts,
    proposed,
    row_max,
    thresholds,
    chunk_sums,
    arrived,
    tokens,
    vocab_size,
    num_chunks,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_CHANGES: tl.constexpr,
    HAS_FILTERS: tl.constexpr,
    HAS_PROPOSED: tl.constexpr,
    PDL: tl.constexpr,
):
    follow(PDL)
    place, chunk = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + place)
    if (row < 0) | (row >= num_table_rows):
        return
    temperature = read_float(table, row, _TEMPERATURE, _NUM_COLUMNS)
    draft = tl.load(drafts + place)
    if (temperature == 0.0) | (draft < 0):
        return
    is_changed = _is_changed(table, row, HAS_CHANGES)
    own = logits + place.to(tl.int64) * row_stride
    changed += place.to(tl.int64) * vocab_size
    maximum = tl.load(row_max + place)
    threshold = float("-inf")
    if HAS_FILTERS:
        threshold = tl.load(thresholds + place)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    x = _processed(own, changed, is_changed, maximum, temperature, threshold, ids, vocab_size, HAS_CHANGES)
    base = place.to(tl.int64) * CHUNKS
    tl.store(chunk_sums + (base + chunk) * 2, tl.sum(tl.exp(x), 0))
    if is_last_arrival(arrived, place, num_chunks):
        chunks = tl.arange(0, CHUNKS)
        sums = tl.load(chunk_sums + (base + chunks) * 2, mask=chunks < num_chunks, other=0.0, cache_modifier=".cg")
        total = tl.sum(sums, 0)
        tl.store(chunk_sums + base * 2 + 1, total)
        at_draft = _processed(
            own, changed, is_changed, maximum, temperature, threshold, draft, vocab_size, HAS_CHANGES
        )  # fmt: skip
        p = tl.exp(at_draft) / total
        index, choice, key_low, key_high = _counters(table, row, positions, place)
        share = uniform(token_word(draft, index, choice, key_low, key_high, _ACCEPT))
        if HAS_PROPOSED:
            share *= tl.load(proposed + place.to(tl.int64) * vocab_size + draft)
        tl.store(tokens + place, tl.where((share <= p) & (p > 0.0), draft, _REJECTED))


@triton.jit(
    do_not_specialize=["num_table_rows", "blocks_per_program", "num_programs"],
    do_not_specialize_on_alignment=["rows", "positions"],
)
def _redraw(
    logits,
    row_stride,
    changed,
    rows,
    positions,
    table,
    num_table_rows,
    drafts,
    proposed,
    row_max,
    most_likely,
    thresholds,
    chunk_sums,
    partial_values,
    partial_ids,
    arrived,
    tokens,
    vocab_size,
    blocks_per_program,
    num_programs,
    CHUNKS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_CHANGES: tl.constexpr,
    HAS_FILTERS: tl.constexpr,
    HAS_PROPOSED: tl.constexpr,
    PDL: tl.constexpr,
):
    follow(PDL)
    place, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + place)
    if (row < 0) | (row >= num_table_rows):
        return
    if tl.load(tokens + place) != _REJECTED:
        return
    temperature = read_float(table, row, _TEMPERATURE, _NUM_COLUMNS)
    draft = tl.load(drafts + place)
    is_changed = _is_changed(table, row, HAS_CHANGES)
    own = logits + place.to(tl.int64) * row_stride
    changed += place.to(tl.int64) * vocab_size
    maximum = tl.load(row_max + place)
    threshold = float("-inf")
    if HAS_FILTERS:
        threshold = tl.load(thresholds + place)
    total = tl.load(chunk_sums + place.to(tl.int64) * CHUNKS * 2 + 1)
    index, choice, key_low, key_high = _counters(table, row, positions, place)
    best = float("-inf")
    token = NO_ID
    for block in range(blocks_per_program):
        first = (part * blocks_per_program + block) * BLOCK
        ids = first + tl.arange(0, BLOCK)
        x = _processed(own, changed, is_changed, maximum, temperature, threshold, ids, vocab_size, HAS_CHANGES)
        if HAS_PROPOSED:
            q = tl.load(proposed + place.to(tl.int64) * vocab_size + ids, mask=ids < vocab_size, other=0.0)
            left = tl.exp(x) / total - q
            x = tl.where(left > 0.0, tl.log(tl.where(left > 0.0, left, 1.0)), float("-inf"))
        scores = x + gumbel_block(first, index, choice, key_low, key_high, BLOCK, _RESIDUAL)
        score, winner = best_of(tl.where(ids == draft, float("-inf"), scores), ids)
        if score > best:
            best = score
            token = winner
    tl.store(partial_values + place * MAX_SPLITS + part, best)
    tl.store(partial_ids + place * MAX_SPLITS + part, token)
    if is_last_arrival(arrived, place, num_programs):
        parts = tl.arange(0, MAX_SPLITS)
        at, seen = place * MAX_SPLITS + parts, parts < num_programs
        values = tl.load(partial_values + at, mask=seen, other=float("-inf"), cache_modifier=".cg")
        candidates = tl.load(partial_ids + at, mask=seen, other=NO_ID, cache_modifier=".cg")
        best, token = best_of(values, candidates)
        if best == float("-inf"):  # no rest
            at_draft = _processed(
                own, changed, is_changed, maximum, temperature, threshold, draft, vocab_size, HAS_CHANGES
            )  # fmt: skip
            token = tl.where(tl.exp(at_draft) / total > 0.0, draft, tl.load(most_likely + place))
        tl.store(tokens + place, tl.minimum(token, vocab_size - 1))


def verify_rows(
    logits: Tensor,
    changed: Tensor | None,
    rows: Tensor,
    positions: Tensor,
    table: Tensor,
    drafts: Tensor,
    proposed: Tensor | None,
    tokens: Tensor,
    workspace: SamplingWorkspace,
    *,
    has_filters: bool,
) -> None:
    """Arguments as those of `draw.draw_rows`; drafts: int32 [n], negative where there is none; proposed: float32
    [n, vocab], what each draft was drawn from, None: they were not drawn. Places without a draft, greedy places and
    padding keep their tokens."""
    num_places, vocab_size = logits.shape
    pdl = has_dependent_launch(logits.device)
    num_chunks = triton.cdiv(vocab_size, LOGPROB_CHUNK)
    shared = (logits, logits.stride(0), logits if changed is None else changed, rows, positions, table, table.shape[0])
    shared += (drafts, logits if proposed is None else proposed, workspace.row_max)
    kinds = {"HAS_CHANGES": changed is not None, "HAS_FILTERS": has_filters, "HAS_PROPOSED": proposed is not None}
    _accept[(num_places, num_chunks)](
        *shared,
        workspace.thresholds,
        workspace.chunk_sums,
        workspace.arrived,
        tokens,
        vocab_size,
        num_chunks,
        CHUNKS=workspace.chunk_sums.shape[1],
        CHUNK=LOGPROB_CHUNK,
        **kinds,
        PDL=pdl,
        num_warps=8,
        launch_pdl=pdl,
    )
    block = 1024 if num_places <= 8 else 2048
    splits = num_splits(num_places, vocab_size, block, 8 * num_sms(logits.device))
    blocks = triton.cdiv(triton.cdiv(vocab_size, block), splits)
    splits = triton.cdiv(triton.cdiv(vocab_size, block), blocks)
    _redraw[(num_places, splits)](
        *shared,
        workspace.most_likely,
        workspace.thresholds,
        workspace.chunk_sums,
        workspace.partial_values,
        workspace.partial_ids,
        workspace.arrived,
        tokens,
        vocab_size,
        blocks,
        splits,
        CHUNKS=workspace.chunk_sums.shape[1],
        MAX_SPLITS=workspace.partial_values.shape[1],
        BLOCK=block,
        **kinds,
        PDL=pdl,
        num_warps=4 if block == 1024 else 8,
        launch_pdl=pdl,
    )
