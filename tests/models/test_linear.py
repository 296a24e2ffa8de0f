"""Packed or not, a Linear is F.linear."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.models import linear
from callboard.models.linear import Linear, can_pack, compute_dtype

CPU = torch.device("cpu")


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(0, 40),
    in_features=st.integers(1, 80),
    out_features=st.integers(1, 80),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_equals_f_linear(num_rows, in_features, out_features, dtype, seed):
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=random).to(dtype)
    x = torch.randn(num_rows, in_features, generator=random).to(dtype)
    expected = F.linear(x.double(), weight.double())
    got = Linear(weight.clone())(x)
    assert got.dtype == dtype and got.shape == (num_rows, out_features)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(got.double(), expected, atol=tolerance * in_features**0.5, rtol=tolerance)


def test_takes_rows_with_strides():
    x, weight = torch.randn(6, 100)[:, 20:84], torch.randn(32, 64)
    torch.testing.assert_close(Linear(weight)(x), x.contiguous() @ weight.T, atol=1e-4, rtol=1e-4)


def test_a_shared_weight_counts_only_where_it_had_to_be_copied(monkeypatch):
    weight = torch.randn(16, 32)
    assert Linear(weight).num_bytes == 16 * 32 * 4
    monkeypatch.setattr(linear, "can_pack", lambda dtype: False)
    assert Linear(weight, shared=True).num_bytes == 0
    torch.testing.assert_close(Linear(weight)(torch.eye(32)), weight.T)


@pytest.mark.parametrize("packs_bfloat16", [True, False])
def test_bfloat16_is_widened_only_where_the_cpu_cannot_multiply_it(monkeypatch, packs_bfloat16):
    monkeypatch.setattr(linear, "can_pack", lambda dtype: dtype == torch.float32 or packs_bfloat16)
    assert compute_dtype(torch.float32, CPU) == torch.float32
    assert compute_dtype(torch.bfloat16, CPU) == (torch.bfloat16 if packs_bfloat16 else torch.float32)
    assert compute_dtype(torch.bfloat16, torch.device("cuda")) == torch.bfloat16


def test_without_onednn_nothing_is_packed_or_widened(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    can_pack.cache_clear()
    try:
        assert not can_pack(torch.float32)
        assert compute_dtype(torch.bfloat16, CPU) == torch.bfloat16
    finally:
        can_pack.cache_clear()
