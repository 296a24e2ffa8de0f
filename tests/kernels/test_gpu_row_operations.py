"""RMSNorm, with and without the residual add, and gated activations against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from callboard.kernels.gpu.act_mul import act_mul
from callboard.kernels.gpu.rms_norm import add_rms_norm, rms_norm
from callboard.tests.kernels.gpu import DEVICE, relative_error

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 8e-3}
WIDTHS = [1, 7, 1023, 4096]


def strided(rows, width, dtype, seed):
    """Normal numbers in rows that NaN follows."""
    wide = torch.full((rows, width + 8), torch.nan, dtype=dtype, device=DEVICE)
    wide[:, :width] = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    return wide[:, :width]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(width, dtype):
    x, weight = strided(3, width, dtype, 1), torch.rand(width, device=DEVICE) + 0.5
    out = torch.full_like(x, torch.nan)
    rms_norm(x, weight, 1e-5, out)
    expected = F.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    assert relative_error(out, expected) < TOLERANCE[dtype]
    rms_norm(x, weight, 1e-5, x)
    assert torch.equal(x, out)


@pytest.mark.parametrize("residual_dtype", TOLERANCE)
@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm(width, residual_dtype):
    x, residual = strided(2, width, torch.bfloat16, 2), strided(2, width, residual_dtype, 3)
    total, weight = x.double() + residual.double(), torch.rand(width, device=DEVICE) + 0.5
    out = torch.full_like(x, torch.nan)
    add_rms_norm(x, residual, weight, 1e-6, out)
    assert relative_error(residual, total) < TOLERANCE[residual_dtype]
    assert relative_error(out, F.rms_norm(total, (width,), weight.double(), 1e-6)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_act_mul(activation, dtype):
    for width in WIDTHS:
        gate_up = strided(3, 2 * width, dtype, 4) * 3
        out = torch.full((3, width), torch.nan, dtype=dtype, device=DEVICE)
        act_mul(gate_up, out, activation)
        gate, up = gate_up.double().chunk(2, dim=-1)
        gate = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        assert relative_error(out, gate * up) < TOLERANCE[dtype]


def test_no_rows_are_no_work():
    nothing = torch.empty(0, 8, device=DEVICE)
    rms_norm(nothing, torch.ones(8, device=DEVICE), 1e-5, nothing)
    act_mul(torch.empty(0, 16, device=DEVICE), nothing, "silu")


def test_operands_that_do_not_fit_are_refused():
    x = torch.zeros(2, 8, device=DEVICE)
    with pytest.raises(ValueError, match="do not belong together"):
        rms_norm(x, torch.ones(7, device=DEVICE), 1e-5, x)
    with pytest.raises(ValueError, match=r"out \[2, 8\] asks for \[2, 16\]"):
        act_mul(x, x, "silu")
    with pytest.raises(ValueError, match="'relu'"):
        act_mul(x, x, "relu")
