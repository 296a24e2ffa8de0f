"""What compiled code takes for a step: a model's sizes and weights, the step's tokens, the buffers it works in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .entries import PANELS, product, score_bfloat16, score_float32, sum_bfloat16, sum_float32
from .packing import PackedMatrix
from .quantized_rows import GROUP, PANEL, Float32s

Int64s = NDArray[np.int64]

QKV, OUTPUT, GATE_UP, DOWN = range(4)
PHASES = ("embedding", "norms", "qkv", "rotary, cache", "attention", "output", "gate, up", "activation", "down", "head")
"""What `times` are of, thread by thread: int64 [10] each, in the processor's units."""
INPUT_NORM, MLP_NORM, AFTER_ATTENTION_NORM, AFTER_MLP_NORM = range(4)
BITS, OUTPUTS, INPUTS, VALUES, SCALES, MINIMUMS, BIAS, KERNEL, NUM_FIELDS = range(9)
"""Fields of a matrix in compiled code: int64 [8]; OUTPUTS filled up to panels, the last five are addresses."""
TILE_QUERIES, TILE_KEYS = 128, 64
FINE_FROM = {8: 5.0, 15: 0.0}
"""Bits of a row -> `Rows.fine_from`. At 5 it is an eighth to a fifth of the groups of a language model's rows, in which
most of the rounding error was."""


class Rows(NamedTuple):
    """Rows in both forms; the second is filled if an integer matrix takes them."""

    x: NDArray[np.float32]
    """[capacity, columns]"""
    values: NDArray[np.int8]
    """[capacity, 2 columns]: in parts"""
    scales: NDArray[np.float32]
    """[capacity, columns / 32, 3]"""
    fine_from: np.float32
    """What is rounded finely, as `rows.round_row` says; 0: everything."""


class Decoder(NamedTuple):
    """A model's sizes and weights, for compiled code."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: np.float32
    scale: np.float32
    """Of scores: 1 / sqrt(head_dim)."""
    is_gelu: bool
    embedding_scale: np.float32
    embedding: Int64s
    """[8]"""
    matrices: Int64s
    """[num_layers, 4, 8]: QKV, OUTPUT, GATE_UP, DOWN, each as in `linear`."""
    norms: Float32s
    """[num_layers, 2 or 4, hidden_size]: INPUT_NORM, MLP_NORM, and those behind attention and MLP in some families."""
    head_norms: Float32s
    """[num_layers, num_heads + num_kv_heads, head_dim], or [0, 0, 0]."""
    final_norm: Float32s
    """[hidden_size]"""
    windows: Int64s
    """[num_layers]: tokens that a token sees; 0: all before it."""
    tables: Int64s
    """[num_layers]: which rotary table."""
    rotary: Float32s
    """[num_tables, max_model_len, 2, head_dim]: cosines, and sines with the sign that a half turn wants."""


class Step(NamedTuple):
    """The tokens of a step: n rows, t tokens, in the plan's order."""

    token_ids: Int64s
    """[t]"""
    positions: Int64s
    """[t]"""
    slots: Int64s
    """[t]: where key and value go."""
    block_tables: NDArray[np.int32]
    """[max rows, max_blocks]"""
    table_rows: NDArray[np.int32]
    """[n]: the row's line in block_tables."""
    pieces: NDArray[np.int32]
    """[m, 3]: row of 0 .. n - 1, its first token in the flat list, number of tokens: attention's parts, for each key
    head once."""


class Buffers(NamedTuple):
    """Room for the tokens of a step, float32."""

    hidden: Float32s
    """[capacity, hidden_size]: the result of the final norm at last."""
    rows: Rows
    qkv: Float32s
    """[capacity, outputs of QKV]"""
    heads: Float32s
    """[capacity, num_heads + 2 num_kv_heads, head_dim]: the same numbers."""
    wide: Float32s
    """[capacity, outputs of GATE_UP]"""
    narrow: Float32s
    """[capacity, outputs of OUTPUT and DOWN]: what those return where a norm stands between it and the sum."""


class Scratch(NamedTuple):
    """One thread's place for intermediate values, float32."""

    scores: NDArray[np.float32]
    """[query heads of a key head, longest row]"""
    queries: NDArray[np.float32]
    """[TILE_QUERIES, head_dim]"""
    keys: NDArray[np.float32]
    """[head_dim, TILE_KEYS]: transposed"""
    values: NDArray[np.float32]
    """[TILE_KEYS, head_dim]"""
    weights: NDArray[np.float32]
    """[TILE_QUERIES, TILE_KEYS]"""
    sums: NDArray[np.float32]
    """[TILE_QUERIES, head_dim]"""
    norms: NDArray[np.float32]
    """[TILE_QUERIES, 3]: maximum and denominator of the softmax so far, maximum of the tile"""
    addresses: NDArray[np.int64]
    """[5]: of the tiles for scores in float32 and bfloat16, for sums in both, and of `product`."""


def make_scratch(num_heads: int, num_kv_heads: int, head_dim: int, max_len: int) -> Scratch:
    shapes = (
        (num_heads // num_kv_heads, max_len + TILE_KEYS),
        (TILE_QUERIES, head_dim),
        (head_dim, TILE_KEYS),
        (TILE_KEYS, head_dim),
        (TILE_QUERIES, TILE_KEYS),
        (TILE_QUERIES, head_dim),
        (TILE_QUERIES, 3),
    )
    addresses = (score_float32(), score_bfloat16(), sum_float32(), sum_bfloat16(), product())
    return Scratch(*(np.zeros(shape, np.float32) for shape in shapes), np.array(addresses, np.int64))


def make_rows(capacity: int, columns: int, fine_from: float) -> Rows:
    """columns: of the widest matrix."""
    groups = -(-columns // GROUP)
    return Rows(
        np.zeros((capacity, columns), np.float32),
        np.zeros((capacity, 2 * GROUP * groups), np.int8),
        np.zeros((capacity, groups, 3), np.float32),
        np.float32(fine_from),
    )


def fields_of(matrix: PackedMatrix) -> NDArray[np.int64]:
    """int64 [8]; valid as long as the matrix lives."""
    bias = matrix.bias.ctypes.data if matrix.bias.size else 0
    arrays = (matrix.values.ctypes.data, matrix.d.ctypes.data, matrix.m.ctypes.data)
    addresses = (*arrays, bias, PANELS[matrix.bits]())
    return np.array((matrix.bits, matrix.num_panels * PANEL, matrix.in_features, *addresses), np.int64)
