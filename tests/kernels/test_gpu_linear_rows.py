"""Linears of a few rows against float64: what is fused, every kind of tile, sizes that fill no tile, NaN around."""

from __future__ import annotations

import itertools

import pytest
import torch

from callboard.kernels.gpu.linear_choice import linear_by_parts, measure_rows, prefers_rows
from callboard.kernels.gpu.linear_rows import linear_rows, linear_rows_twin
from callboard.kernels.gpu.tile_table import RowDot, RowTiles, choose_tile
from callboard.tests.kernels.gpu import DEVICE, relative_error

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
TILES = [
    RowDot(2, 4, 1),
    RowDot(4, 4, 2, 64),
    RowTiles(8, 16, 64, 4, 3, 1, 2),
    RowTiles(16, 16, 64, 4, 2, 2, 0),
    RowTiles(8, 32, 64, 4, 2, 3, 1),
]
KINDS = {
    "plain": {},
    "bias": {"bias": True},
    "residual": {"residual": True, "bias": True},
    "norm": {"norm": True},
    "silu": {"activation": "silu", "norm": True, "bias": True},
    "gelu_tanh": {"activation": "gelu_tanh"},
}


def operands(n, k, m, dtype, kind, seed=0):
    """(x, weight, keyword arguments); x and the residual lie in wider rows whose rest is NaN."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    def strided(rows, width):
        wide = torch.full((rows, width + 16), torch.nan, dtype=dtype, device=DEVICE)
        wide[:, :width] = normal(rows, width).to(DEVICE, dtype)
        return wide[:, :width]

    parts = KINDS[kind]
    num_weight_rows = 2 * m if parts.get("activation") else m
    weight = (normal(num_weight_rows, k) * k**-0.5).to(DEVICE, dtype)
    arguments = {"activation": parts.get("activation")}
    if parts.get("bias"):
        arguments["bias"] = normal(num_weight_rows).to(DEVICE, dtype)
    if parts.get("norm"):
        arguments["norm"] = ((torch.rand(k, generator=generator) + 0.5).to(DEVICE), 1e-5)
    if parts.get("residual"):
        arguments["residual"] = strided(n, m)
    return strided(n, k), weight, arguments


def assert_near_twin(out, x, weight, arguments):
    expected = linear_rows_twin(x.double(), weight, **arguments)
    assert relative_error(out, expected) < TOLERANCE[out.dtype]


def nans(n, m, dtype):
    return torch.full((n, m), torch.nan, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_agree_with_float64(tile, kind):
    sizes = {torch.float32: (3, 136, 11), torch.bfloat16: (2, 72, 7)}
    for dtype in TOLERANCE if kind in ("residual", "silu") else (torch.float32,):
        n, k, m = sizes[dtype]
        x, weight, arguments = operands(n, k, m, dtype, kind)
        out = nans(n, m, dtype)
        linear_rows(x, weight, out, tile=tile, **arguments)
        assert_near_twin(out, x, weight, arguments)


@pytest.mark.parametrize("n", [1, 2, 20])
def test_chosen_tiles_agree_with_float64(n):
    for kind in ("silu", "residual"):
        x, weight, arguments = operands(n, 320, 24, torch.bfloat16, kind, seed=n)
        out = nans(n, 24, torch.bfloat16)
        linear_rows(x, weight, out, **arguments)
        assert_near_twin(out, x, weight, arguments)


@pytest.mark.parametrize("tile", [TILES[0], TILES[3]], ids=str)
def test_the_residual_may_be_the_output(tile):
    x, weight, arguments = operands(3, 64, 33, torch.float32, "residual")
    apart = nans(3, 33, torch.float32)
    linear_rows(x, weight, apart, tile=tile, **arguments)
    linear_rows(x, weight, arguments["residual"], tile=tile, **arguments)
    assert torch.equal(arguments["residual"], apart)


def test_a_split_sum_gives_the_same_bits_again():
    x, weight, arguments = operands(5, 256, 48, torch.float32, "plain")
    first, second = nans(5, 48, torch.float32), nans(5, 48, torch.float32)
    for out in (first, second):
        linear_rows(x, weight, out, tile=TILES[3], **arguments)
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_by_parts_agrees_with_float64(kind):
    n, k, m = 6, 64, 24
    x, weight, arguments = operands(n, k, m, torch.float32, kind)
    if "norm" in arguments:
        arguments["norm"] = (*arguments["norm"], nans(n, k, torch.float32))
    activation = arguments.pop("activation")
    both = (activation, nans(n, 2 * m, torch.float32)) if activation else None
    out = nans(n, m, torch.float32)
    linear_by_parts(x, weight, out, activation=both, **arguments)
    if "norm" in arguments:
        arguments["norm"] = arguments["norm"][:2]
    assert_near_twin(out, x, weight, {"activation": activation, **arguments})


def test_operands_that_do_not_fit_are_refused():
    x, weight, out = torch.zeros(2, 8), torch.zeros(6, 8), torch.zeros(2, 6)
    with pytest.raises(ValueError, match=r"weight is \[6, 8\].*\[12, 8\]"):
        linear_rows(x, weight, out, activation="silu")
    with pytest.raises(ValueError, match=r"'relu'.*silu, gelu_tanh"):
        linear_rows(x, weight, out, activation="relu")
    with pytest.raises(ValueError, match="without activation"):
        linear_rows(x, torch.zeros(12, 8), out, activation="silu", residual=out)
    with pytest.raises(ValueError, match=r"bias has to be \[6\]"):
        linear_rows(x, weight, out, bias=torch.zeros(5))


SHAPES = [(4096, 6144, False), (4096, 14336, True), (14336, 4096, False), (1024, 3072, True), (3072, 1024, False)]


@pytest.mark.parametrize(("k", "m", "gated"), SHAPES)
def test_a_chosen_tile_fits_a_hopper_gpu(k, m, gated):
    """227 KB of shared memory a program; masks and prefetches ask for powers of two."""
    for n, element_size in itertools.product(range(1, 65), (2, 4)):
        tile = choose_tile(n, k, m, gated=gated, num_sms=132, element_size=element_size)
        sizes = [tile.block_m, tile.warps, *([tile.block_k] if tile.block_k else [])]
        if isinstance(tile, RowTiles):
            rows = tile.block_m * (2 if gated else 1) + tile.block_n
            assert rows * tile.block_k * element_size * tile.stages <= 227 * 1024
            assert tile.splits * tile.block_k <= k
            sizes += [tile.block_n, *([tile.prefetch] if tile.prefetch else [])]
        assert all(size & (size - 1) == 0 for size in sizes)


def test_rows_beyond_the_measured_go_through_cublas():
    assert prefers_rows(1, 4096, 6144, gated=False, num_sms=132)
    assert not prefers_rows(64, 4096, 4096, gated=False, num_sms=132)
    assert not prefers_rows(65, 4096, 14336, gated=True, num_sms=132)
    assert measure_rows([torch.zeros(4, 4)], [100, 256], norm=None, activation=None, adds=False) == {
        100: False,
        256: False,
    }


@pytest.mark.gpu
def test_a_choice_is_measured():
    weights = [torch.randn(2048, 1024, device=DEVICE, dtype=torch.bfloat16) for _ in range(8)]
    norm = (torch.ones(1024, device=DEVICE), 1e-5)
    assert measure_rows(weights, [1, 128], norm=norm, activation="silu", adds=False) == {1: True, 128: False}
