"""Random matrices for the CPU's kernels, and what their bytes mean, read value by value from the documented layout."""

from __future__ import annotations

import numpy as np

from callboard.kernels.cpu.linear import multiply
from callboard.kernels.cpu.packing import MatrixPacker, PackedMatrix
from callboard.kernels.cpu.rows import round_row
from callboard.kernels.cpu.step_arguments import Rows, fields_of, make_rows
from callboard.kernels.cpu.team import Team

BITS = (4, 8, 16, 32)

_ALONE = Team(1)


def random_matrix(seed: int, out_features: int, in_features: int) -> np.ndarray:
    """float32, with magnitudes that differ from group to group."""
    rng = np.random.default_rng(seed)
    magnitudes = 10.0 ** rng.uniform(-2, 1, (out_features, -(-in_features // 32)))
    values = rng.standard_normal((out_features, in_features)) + rng.uniform(-1, 1)
    return (values * magnitudes.repeat(32, 1)[:, :in_features]).astype(np.float32)


def pack(bits: int, weights: np.ndarray) -> PackedMatrix:
    packer = MatrixPacker(bits, *weights.shape)
    packer.put(0, weights)
    return packer.take()


def stored_numbers(matrix: PackedMatrix) -> np.ndarray:
    """[out_features, in_features]: q of an integer format, otherwise the weights as float32."""
    o, i = np.ogrid[: matrix.out_features, : matrix.in_features]
    panel, place = o // 16 * 16 * matrix.in_features, o % 16
    if matrix.bits == 32:
        return matrix.values.view(np.float32)[panel + 16 * i + place]
    if matrix.bits == 16:
        words = matrix.values.view(np.uint16)[panel + 16 * i + place].astype(np.uint32)
        return (words * 65536).view(np.float32)
    if matrix.bits == 8:
        return matrix.values[panel + i // 4 * 64 + 4 * place + i % 4]
    pairs = matrix.values[panel // 2 + i // 8 * 64 + 4 * place + i % 4]
    return np.where(i % 8 < 4, pairs % 16, pairs // 16)


def group_parameters(matrix: PackedMatrix) -> tuple[np.ndarray, np.ndarray]:
    """d and m, float64 [out_features, groups]."""
    o = np.arange(matrix.out_features)
    return tuple(part[o // 16, :, o % 16].astype(np.float64) for part in (matrix.d, matrix.m))


def stored_weights(matrix: PackedMatrix) -> np.ndarray:
    """float64 [out_features, in_features]: the numbers that the kernels multiply by."""
    numbers = stored_numbers(matrix).astype(np.float64)
    if matrix.bits > 8:
        return numbers
    d, m = (part.repeat(32, 1) for part in group_parameters(matrix))
    return d * numbers + m


def fill_rows(x: np.ndarray, spare_columns: int = 0, fine_from: float = 0.0) -> Rows:
    """Rows in both forms, if they have whole groups; what lies behind the columns is no number."""
    rows = make_rows(len(x), x.shape[1] + spare_columns, fine_from)
    rows.x.fill(np.nan)
    rows.values.fill(77)
    rows.scales.fill(np.nan)
    rows.x[:, : x.shape[1]] = x
    if x.shape[1] % 32 == 0:
        for r in range(len(x)):
            round_row(rows.x[r, : x.shape[1]], rows.fine_from, rows.values[r], rows.scales[r])
    return rows


def one_row(rows: Rows, row: int) -> Rows:
    part = slice(row, row + 1)
    return rows._replace(x=rows.x[part], values=rows.values[part], scales=rows.scales[part])


def multiply_alone(matrix: PackedMatrix, rows: Rows, num_rows: int, y: np.ndarray, adds: int = 0) -> np.ndarray:
    """`multiply` in this thread, into y; returns y [num_rows, out_features]."""
    _ALONE.run(lambda index: multiply(_ALONE.state, index, fields_of(matrix), rows, num_rows, y, adds))
    return y[:num_rows, : matrix.out_features]


def exact_product(matrix: PackedMatrix, rows: Rows, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """float64 [num_rows, out_features] each: the product of the numbers that are stored, and what float32 sums of them
    may be off by, in any order."""
    size = matrix.in_features
    weights = stored_weights(matrix)
    if matrix.bits > 8:
        x = rows.x[:num_rows, :size].astype(np.float64)
        return x @ weights.T, (size + 2) * 2.0**-24 * (np.abs(x) @ np.abs(weights).T)
    groups = size // 32
    parts = rows.values[:num_rows, : 2 * size].astype(np.float64).reshape(num_rows, groups, 2, 32)
    steps = 128 * parts[:, :, 0] + parts[:, :, 1]
    scales = rows.scales[:num_rows, :groups, 0].astype(np.float64)
    d, m = group_parameters(matrix)
    q = stored_numbers(matrix).astype(np.float64).reshape(-1, groups, 32)
    scaled = np.einsum("rgi,ogi,rg,og->rog", steps, q, scales, d)
    lifted = np.einsum("rgi,rg,og->rog", steps, scales, m)
    return (scaled + lifted).sum(-1), (2 * groups + 4) * 2.0**-24 * (np.abs(scaled) + np.abs(lifted)).sum(-1)
