"""Attention whose keys several programs have gone over: the average of their averages, by weight.

A program's share of a (row, head) is the average a_p of the values it saw, and log2 of their weights' sum, s_p:
out = sum_p 2^s_p a_p / sum_p 2^s_p, with the largest s_p taken off (Milakov and Gimelshein 2018, arXiv:1805.02867).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_part(
    sums,
    scales,
    program,
    first_program,
    last_program,
    e,
    is_element,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PART_ROWS: tl.constexpr,
):
    """A program's share, element by element of the flat [PART_ROWS, BLOCK_D]: log2 of its weight, and its average."""
    line = (program * 2 + (program == first_program).to(tl.int32)) * PART_ROWS + e // BLOCK_D
    is_there = is_element & (program <= last_program)
    scale = tl.load(scales + line, mask=is_there, other=float("-inf"), cache_modifier=".cg")
    average = tl.load(sums + line * HEAD_DIM + e % BLOCK_D, mask=is_there, other=0.0, cache_modifier=".cg")
    return scale, average


@triton.jit
def add_shares(
    sums,
    scales,
    first_program,
    last_program,
    e,
    is_element,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PART_ROWS: tl.constexpr,
):
    """The attention of a (row, head) whose keys are in the runs of programs first_program to last_program, flat.

    All is element by element, and four programs' shares are on their way at once: a sum across threads would cost more
    than the rest (0.65 us a share, measured on one H200 2026-11-30).
    """
    m = tl.full(e.shape, float("-inf"), tl.float32)
    total = tl.zeros(e.shape, tl.float32)
    acc = tl.zeros(e.shape, tl.float32)
    for program in tl.range(first_program, last_program + 1, 4):
        scale_0, average_0 = _load_part(
            sums, scales, program, first_program, last_program, e, is_element, HEAD_DIM, BLOCK_D, PART_ROWS
        )
        scale_1, average_1 = _load_part(
            sums, scales, program + 1, first_program, last_program, e, is_element, HEAD_DIM, BLOCK_D, PART_ROWS
        )
        scale_2, average_2 = _load_part(
            sums, scales, program + 2, first_program, last_program, e, is_element, HEAD_DIM, BLOCK_D, PART_ROWS
        )
        scale_3, average_3 = _load_part(
            sums, scales, program + 3, first_program, last_program, e, is_element, HEAD_DIM, BLOCK_D, PART_ROWS
        )
        m_new = tl.maximum(tl.maximum(tl.maximum(scale_0, scale_1), tl.maximum(scale_2, scale_3)), m)
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
        old = tl.exp2(m - base)
        weight_0, weight_1 = tl.exp2(scale_0 - base), tl.exp2(scale_1 - base)
        weight_2, weight_3 = tl.exp2(scale_2 - base), tl.exp2(scale_3 - base)
        acc = acc * old + weight_0 * average_0 + weight_1 * average_1 + weight_2 * average_2 + weight_3 * average_3
        total = total * old + weight_0 + weight_1 + weight_2 + weight_3
        m = m_new
    return acc / tl.where(is_element, total, 1.0)
