"""However it is held, a Linear is F.linear."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.models import linear
from callboard.models.linear import (
    HalfLinear,
    PackedLinear,
    PlainLinear,
    can_pack,
    can_pack_half,
    compute_dtype,
    held_dtype,
    hold_linear,
    is_packed,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_half = pytest.mark.skipif(not can_pack_half(), reason="FBGEMM packs no float16 here")


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(0, 40),
    in_features=st.integers(1, 80),
    out_features=st.integers(1, 80),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_equals_f_linear(num_rows, in_features, out_features, dtype, has_bias, seed):
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=random).to(dtype)
    bias = torch.randn(out_features, generator=random).to(dtype) if has_bias else None
    width = compute_dtype(dtype, CPU)
    x = torch.randn(num_rows, in_features, generator=random).to(width)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    got = hold_linear(weight.clone(), bias)(x)
    assert got.dtype == width and got.shape == (num_rows, out_features)
    tolerance = 1e-5 if width == torch.float32 else 2**-7
    torch.testing.assert_close(got.double(), expected, atol=tolerance * in_features**0.5, rtol=tolerance)


@pytest.mark.parametrize("held_as", [PlainLinear, PackedLinear, pytest.param(HalfLinear, marks=needs_half)])
def test_takes_rows_with_strides(held_as):
    x, weight = torch.randn(6, 100)[:, 20:84], torch.randn(32, 64).half().float()
    torch.testing.assert_close(held_as(weight)(x), x.contiguous() @ weight.T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("held_as", [PlainLinear, PackedLinear, pytest.param(HalfLinear, marks=needs_half)])
def test_a_bias_is_added_and_counted(held_as):
    weight, bias = torch.zeros(32, 64), torch.randn(32)
    held = held_as(weight, bias)
    assert torch.equal(held(torch.randn(5, 64)), bias.expand(5, 32))
    assert held.num_bytes - held_as(weight).num_bytes == 4 * 32


@needs_half
@settings(max_examples=60, deadline=None)
@given(exponent=st.integers(-40, 15), mantissa=st.integers(128, 255), sign=st.sampled_from([-1, 1]))
def test_float16_holds_bfloat16_to_within_2_to_the_minus_25(exponent, mantissa, sign):
    """bfloat16 has 8 bits: 128..255 times a power of two."""
    value = sign * mantissa * 2.0 ** (exponent - 7)
    got = HalfLinear(torch.tensor([[value]], dtype=torch.bfloat16))(torch.ones(1, 1)).item()
    assert abs(got - value) <= (0 if exponent >= -14 else 2**-25)


@needs_half
@pytest.mark.parametrize("large", [65536.0, -1e30])
def test_what_float16_cannot_hold_is_widened(without_native_bfloat16, large):
    weight = torch.tensor([[large, 1.0], [2.0, 3.0]], dtype=torch.bfloat16)
    held = hold_linear(weight)
    assert isinstance(held, PackedLinear) and held.num_bytes == 4 * 4
    assert torch.equal(held(torch.eye(2)), weight.float().T)


@pytest.fixture
def without_native_bfloat16(monkeypatch):
    monkeypatch.setattr(linear, "can_pack", lambda dtype: dtype == torch.float32)


@needs_half
def test_where_bfloat16_is_not_native_it_takes_two_bytes_and_rows_of_float32(without_native_bfloat16):
    assert held_dtype(torch.bfloat16, CPU) == torch.float16
    assert compute_dtype(torch.bfloat16, CPU) == torch.float32
    assert compute_dtype(torch.bfloat16, CUDA) == held_dtype(torch.bfloat16, CUDA) == torch.bfloat16
    held = hold_linear(torch.ones(16, 32, dtype=torch.bfloat16), shared=True)
    assert held.num_bytes == 16 * 512 * 2
    assert torch.equal(held(torch.ones(3, 32)), torch.full((3, 16), 32.0))


def test_without_fbgemm_it_is_widened(without_native_bfloat16, monkeypatch):
    monkeypatch.setattr(linear, "can_pack_half", lambda: False)
    assert held_dtype(torch.bfloat16, CPU) == compute_dtype(torch.bfloat16, CPU) == torch.float32
    assert hold_linear(torch.ones(16, 32, dtype=torch.bfloat16)).num_bytes == 16 * 32 * 4


def test_native_bfloat16_and_float32_stay_what_they_are(monkeypatch):
    monkeypatch.setattr(linear, "can_pack", lambda dtype: True)
    for dtype in (torch.float32, torch.bfloat16):
        assert compute_dtype(dtype, CPU) == held_dtype(dtype, CPU) == dtype
        assert is_packed(dtype, CPU) and not is_packed(dtype, CUDA)


def test_a_shared_weight_counts_only_where_it_had_to_be_copied(monkeypatch):
    weight = torch.randn(16, 32)
    assert hold_linear(weight).num_bytes == 16 * 32 * 4
    monkeypatch.setattr(linear, "can_pack", lambda dtype: False)
    assert hold_linear(weight, shared=True).num_bytes == 0
    torch.testing.assert_close(hold_linear(weight)(torch.eye(32)), weight.T)


def test_without_onednn_nothing_is_packed_or_widened(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    can_pack.cache_clear()
    try:
        assert not can_pack(torch.float32)
        assert compute_dtype(torch.bfloat16, CPU) == torch.bfloat16
    finally:
        can_pack.cache_clear()
