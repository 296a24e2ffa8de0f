"""Sum over the ranks of a host in one launch, through memory that every rank can reach: for few bytes.

    x = sum over r of x of rank r, in the order of r, added in float32 and rounded once

Every rank writes its x into its own buffer, tells all others, waits for them, and reads all buffers ("one shot": as in
NVIDIA's TensorRT-LLM and vLLM's custom all-reduce). x is cut into slices, and each slice is the business of one program
on every rank, which has a piece of every buffer, flags and a count of rounds to itself; so programs need not wait for
each other, only for those of the same number elsewhere.

A piece is two slices, used in turn. Round n + 2 writes where round n was read: by then the program has met all others
in round n + 1, to which they came when they had read. Rounds are counted in the memory, not by the host, so that a
graph can hold the launch; they wrap around, and are compared by their difference.

What a program's threads write stands before its flag (a barrier of the program, then a release for the whole system);
what others wrote is read behind it (an acquire, then a barrier).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_PROGRAMS = 64
SLICE_BYTES = 8192
_COUNTS = 4096
"""Where a buffer has its rounds, int32 [MAX_PROGRAMS]; before them flags, int32 [MAX_PROGRAMS, MAX_RANKS]."""
_PIECES = 8192
MAX_RANKS = 16
BUFFER_BYTES = _PIECES + MAX_PROGRAMS * 2 * SLICE_BYTES
"""Of a rank, zeros at first."""


class Peers(NamedTuple):
    """The buffers of a group, as one rank reaches them."""

    bases: Tensor
    """int64 [num_ranks], on the device: their addresses"""
    rank: int


@triton.jit
def _one_shot_kernel(
    x,
    bases,
    num_elements,
    RANK: tl.constexpr,
    NUM_RANKS: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    COUNTS: tl.constexpr,
    PIECES: tl.constexpr,
    SLICE: tl.constexpr,
):
    program = tl.program_id(0)
    element = x.dtype.element_ty
    own = tl.load(bases + RANK)
    own_pieces = tl.multiple_of((own + PIECES).to(tl.pointer_type(element)), 16)
    count = (own + COUNTS).to(tl.pointer_type(tl.int32)) + program
    flags = own.to(tl.pointer_type(tl.int32)) + program * MAX_RANKS
    number = tl.load(count)
    columns = tl.arange(0, SLICE)
    for first in range(program * SLICE, num_elements, tl.num_programs(0) * SLICE):
        number += 1
        place = (program * 2 + (number & 1)) * SLICE + columns
        mask = first + columns < num_elements
        tl.store(own_pieces + place, tl.load(x + first + columns, mask), mask)
        tl.debug_barrier()
        for rank in tl.static_range(NUM_RANKS):
            flag = tl.load(bases + rank).to(tl.pointer_type(tl.int32)) + program * MAX_RANKS + RANK
            tl.atomic_xchg(flag, number, sem="release", scope="sys")
        for rank in tl.static_range(NUM_RANKS):
            while tl.atomic_add(flags + rank, 0, sem="acquire", scope="sys") - number < 0:
                pass
        tl.debug_barrier()
        total = tl.zeros([SLICE], tl.float32)
        for rank in tl.static_range(NUM_RANKS):
            pieces = tl.multiple_of((tl.load(bases + rank) + PIECES).to(tl.pointer_type(element)), 16)
            total += tl.load(pieces + place, mask, other=0.0, cache_modifier=".cg").to(tl.float32)
        tl.store(x + first + columns, total.to(element), mask)
    tl.store(count, number)


def one_shot_all_reduce(x: Tensor, peers: Peers) -> None:
    """x: contiguous, of float32, bfloat16 or float16, of one size and dtype on all ranks, which launch this in the same
    order. The launch ends when those of all ranks have begun."""
    num_ranks = peers.bases.numel()
    if not x.is_contiguous():
        raise ValueError(f"x is {list(x.shape)} with strides {list(x.stride())}, it must be contiguous")
    if num_ranks > MAX_RANKS:
        raise ValueError(f"{num_ranks} ranks, at most {MAX_RANKS} are possible")
    if x.numel() == 0:
        return
    elements = SLICE_BYTES // x.itemsize
    num_programs = min(triton.cdiv(x.numel(), elements), MAX_PROGRAMS)
    _one_shot_kernel[(num_programs,)](
        x, peers.bases, x.numel(), peers.rank, num_ranks, MAX_RANKS, _COUNTS, _PIECES, elements, num_warps=16
    )


def one_shot_all_reduce_twin(parts: list[Tensor]) -> Tensor:
    """Of the x of all ranks."""
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        total += part.float()
    return total.to(parts[0].dtype)
