"""How `linear_rows` is cut for a shape: which kernel, and its tile.

Measured on one H200 (torch 2.11, triton 3.6, 2026-11-30) by `python -m callboard.bench.gpu_kernels.linears --sweep`,
which times every tile with a model's own layers in one CUDA graph, so that no cache holds the weights. What the best
tiles have in common, and shapes beyond the measured ones get: 16 to 32 KB a program on its way, 64 to 190 KB a
multiprocessor, and just as many programs as are resident at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RowDot:
    """Blocks of `block_m` weight rows, `warps` a program, `programs` a multiprocessor."""

    block_m: int
    warps: int
    programs: int
    block_k: int | None = None
    """Columns of a chunk; None: a whole row."""


@dataclass(frozen=True)
class RowTiles:
    """A tile of `block_m` weight rows times `block_n` rows of x, in steps of `block_k`, `stages` of them in flight."""

    block_n: int
    block_m: int
    block_k: int
    warps: int
    stages: int
    splits: int = 1
    prefetch: int = 0
    """Steps that are asked for before the previous kernel ends: 0, 1, 2, 4, ..."""


def choose_tile(n: int, k: int, m: int, *, gated: bool, num_sms: int, element_size: int = 2) -> RowDot | RowTiles:
    """For x [n, k] and out [n, m]; `element_size`: bytes of a number of the weight, 2 (what was measured) or 4."""
    if n == 1:
        return _one_row(k, m, gated, num_sms)
    if n == 2 and k <= 4096 and m >= 32 * num_sms and not gated:
        return RowDot(2 if k > 2048 else 4, 8, 3)
    tile = _tile(n, k, m, gated, num_sms)
    return replace(tile, block_k=tile.block_k * 2 // element_size)


def _one_row(k: int, m: int, gated: bool, num_sms: int) -> RowDot:
    width = max(512, 1 << (k - 1).bit_length())
    if gated:
        # A block of 16 KB, half of it gate rows.
        return RowDot(max(1, 4096 // width), 8, 4) if k <= 4096 else RowDot(4, 4, 4, 1024)
    if k > 4096 or (k == 4096 and m <= 32 * num_sms):
        return RowDot(8, 8, 2 if k <= 4096 else 3, 2048)
    if m <= 8 * num_sms:
        return RowDot(min(8, 16384 // width), 8, 1)
    block_m = min(4, 8192 // width)
    return RowDot(block_m, 8, max(1, min(5 if width <= 1024 else 4, m // (block_m * num_sms))))


def _tile(n: int, k: int, m: int, gated: bool, num_sms: int) -> RowTiles:
    block_n = min(64, max(8, 1 << (n - 1).bit_length()))
    if gated:
        if k < 2048:
            return RowTiles(block_n, 32, 256, 4, 4, 1, 1) if n <= 32 else RowTiles(block_n, 64, 128, 4, 4, 1, 1)
        return RowTiles(block_n, 128, 128, 8, 3) if n <= 16 else RowTiles(block_n, 64, 128, 4, 4, 1, 1)
    if m > 128 * num_sms:
        return RowTiles(block_n, 32, 256, 4, 4, 1, 1) if n <= 8 else RowTiles(block_n, 64, 128, 4, 4, 1, 1)
    if n <= 8 and 32 * num_sms < m <= 64 * num_sms and k >= 2048:
        return RowTiles(block_n, 32, 256, 4, 4, 2, 1)
    # Of 96 KB of stages two programs are resident: as many splits as fill them once.
    tiles = -(-m // 64) * -(-n // block_n)
    splits = 1
    while splits < 8 and 2 * splits * tiles <= (2 if n <= 16 and k >= 2048 else 1) * num_sms and 256 * splits <= k:
        splits *= 2
    return RowTiles(block_n, 64, 128, 4, 6 if n <= 32 else 4, splits, 2)
