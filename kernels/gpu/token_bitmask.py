"""Forbid the tokens that a bitmask does not allow, in place: `kernels.token_bitmask` has the formula and is the twin.

Exact. A logit is written only where it changes, so others keep their bits in every dtype. A program takes a block of
one mask; a mask without a row costs a program that ends at once, so that a graph can hold the launch for every number
of masks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..token_bitmask import lowest
from .launch import has_dependent_launch
from .row_logits import follow

_BLOCK = 4096


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["rows"],
)
def _apply(
    logits,
    row_stride,
    rows,
    num_rows,
    words,
    word_stride,
    vocab_size,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    follow(PDL)
    mask, block = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + mask)
    if (row < 0) | (row >= num_rows):
        return
    ids = block * BLOCK + tl.arange(0, BLOCK)
    is_token = ids < vocab_size
    bits = tl.load(words + mask.to(tl.int64) * word_stride + ids // 32, mask=is_token, other=0)
    is_allowed = ((bits >> (ids % 32)) & 1) != 0
    own = logits + row.to(tl.int64) * row_stride + ids
    found = tl.load(own, mask=is_token & is_allowed, other=0.0).to(tl.float32)
    is_changed = (is_allowed == 0) | (found == float("-inf"))
    tl.store(own, tl.where(is_allowed, LOWEST, float("-inf")), mask=is_token & is_changed)


def apply_token_bitmask(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """logits: [n, vocab_size] of any float dtype, rows dense; rows: int32 [m], the row of logits of each mask,
    distinct, and nothing where it is outside 0 .. n - 1; words: int32 [m, ceil(vocab_size / 32)], masks dense."""
    num_rows, vocab_size = logits.shape
    pdl = has_dependent_launch(logits.device)
    _apply[(rows.shape[0], triton.cdiv(vocab_size, _BLOCK))](
        logits,
        logits.stride(0),
        rows,
        num_rows,
        words,
        words.stride(0),
        vocab_size,
        LOWEST=lowest(logits.dtype),
        BLOCK=_BLOCK,
        PDL=pdl,
        num_warps=8,
        launch_pdl=pdl,
    )
