"""Norm, turn and write to the cache beside plain torch in float64, and beside the turn as the models write it."""

from __future__ import annotations

import pytest
import torch

from callboard.kernels.gpu.rotary_kv_write import rotary_kv_write, rotate_and_write_plainly
from callboard.models.rotary import rotate
from callboard.models.rotary_tables import rotary_table
from callboard.tests.kernels.gpu import DEVICE, relative_error

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 5e-3, torch.float16: 1e-3}
NUM_SLOTS, MAX_LEN = 96, 64


def inputs(t, num_heads, kv_heads, head_dim, dtype, has_norm):
    """Arguments of both functions in order, on the CPU, and their options."""
    generator = torch.Generator().manual_seed(t)
    width = (num_heads + 2 * kv_heads) * head_dim
    qkv = torch.randn(t, width + 16, generator=generator).to(dtype)[:, :width]
    positions = torch.randint(MAX_LEN, (t,), generator=generator)
    table = torch.from_numpy(rotary_table(head_dim, 1e4, MAX_LEN)).unsqueeze(2)
    slots = torch.randperm(NUM_SLOTS, generator=generator)[:t]
    slots[t // 2 :: 5] = -1
    caches = [torch.full((NUM_SLOTS, kv_heads, head_dim), 7.0, dtype=dtype) for _ in range(2)]
    q_out = torch.full((t, num_heads, head_dim), torch.nan, dtype=dtype)
    norm = torch.rand(num_heads + kv_heads, head_dim, generator=generator) + 0.5 if has_norm else None
    return [qkv, positions, table, slots, *caches, q_out], {"norm_weight": norm, "eps": 1e-6}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("has_norm", [False, True], ids=["", "norm"])
@pytest.mark.parametrize(("t", "heads", "head_dim"), [(1, (4, 2), 64), (7, (3, 1), 80), (4, (7, 5), 128)], ids=str)
def test_beside_the_twin(t, heads, head_dim, has_norm, dtype):
    arguments, options = inputs(t, *heads, head_dim, dtype, has_norm)
    expected = [x.double() if x.is_floating_point() else x.clone() for x in arguments]
    rotate_and_write_plainly(*expected, **options)
    results = [x.to(DEVICE, copy=True) for x in arguments]
    results[0] = torch.cat([results[0], results[0]], 1)[:, : results[0].shape[1]]  # rows lie further apart
    results[1] = results[1].int() if t == 1 else results[1]
    norm = options["norm_weight"]
    rotary_kv_write(*results, **{**options, "norm_weight": None if norm is None else norm.to(DEVICE)})
    for result, reference in zip(results[4:], expected[4:], strict=True):
        assert relative_error(result, reference) < TOLERANCE[dtype]
    for result, before, reference in zip(results[4:6], arguments[4:6], expected[4:6], strict=True):
        untouched = reference == 7.0
        assert result.cpu()[untouched].equal(before[untouched])


def test_the_turn_is_the_models():
    """Values as they come, queries and keys as `models.rotary.rotate` turns them."""
    t, num_heads, kv_heads, head_dim = 6, 4, 2, 64
    arguments, options = inputs(t, num_heads, kv_heads, head_dim, torch.float32, False)
    qkv, positions, table, slots, keys, values, q_out = (x.to(DEVICE, copy=True) for x in arguments)
    rotary_kv_write(qkv, positions, table, slots, keys, values, q_out, **options)
    heads = qkv.view(t, -1, head_dim)
    turned = rotate(heads[:, : num_heads + kv_heads], *table[positions].unbind(1))
    written = slots >= 0
    assert relative_error(q_out, turned[:, :num_heads]) < 1e-6
    assert relative_error(keys[slots[written]], turned[written, num_heads:]) < 1e-6
    assert values[slots[written]].equal(heads[written, num_heads + kv_heads :])
