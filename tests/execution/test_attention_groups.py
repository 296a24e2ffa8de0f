"""How rows are grouped for attention: every token once, few groups, the fast form where it applies; and the sum itself
for steps of many shapes against softmax in float64."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.checkpoints.shape import ModelShape
from callboard.execution import attention as attention_module
from callboard.execution.attention import PagedAttention
from callboard.execution.attention_groups import ChunkGroup, ContiguousGroup, DecodeGroup, FreshGroup, IndexedGroup
from callboard.execution.input_batch import InputBatch
from callboard.execution.kv_tensors import KVTensors
from callboard.execution.prepare_inputs import prepare_inputs
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import NewRow, StepPlan

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 2, 8, 4
SHAPE = ModelShape("llama", 1, 32, HEADS, KV_HEADS, HEAD_DIM, 64, 50, 4096, 1e4, 1e-5, True, None, (), num_parameters=0)


def int32(values):
    return np.array(values, np.int32).tobytes()


def make_step(lengths, *, dtype=torch.float32, kv_dtype=None, scattered=True, window=None):
    """lengths: (start, num_tokens) of each row. Returns (attention, keys and values of each row, q, k, v)."""
    generator = torch.Generator().manual_seed(len(lengths))
    shape = SHAPE if window is None else msgspec.structs.replace(SHAPE, windows=(window,))
    tables = block_tables(lengths, scattered)
    num_blocks = sum(map(len, tables)) + 1
    kv = KVTensors(shape, num_blocks, BLOCK_SIZE, kv_dtype or dtype, torch.device("cpu"))
    kv.tensor.fill_(torch.nan)
    known = []
    for (start, n), blocks in zip(lengths, tables, strict=True):
        k, v = (torch.randn(start + n, KV_HEADS, HEAD_DIM, generator=generator).to(dtype) for _ in range(2))
        positions = np.arange(start)
        slots = torch.from_numpy(np.array(blocks)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE)
        kv.keys[0][slots], kv.values[0][slots] = k[:start].to(kv.dtype), v[:start].to(kv.dtype)
        known.append((k, v))
    attention = make_attention(lengths, kv, shape, scattered=scattered, dtype=dtype)
    q = torch.randn(sum(m for _, m in lengths), HEADS, HEAD_DIM, generator=generator).to(dtype)
    k = torch.cat([k[start:] for (k, _), (start, _) in zip(known, lengths, strict=True)])
    v = torch.cat([v[start:] for (_, v), (start, _) in zip(known, lengths, strict=True)])
    return attention, known, q, k, v


def block_tables(lengths, scattered):
    """Blocks of each row, in one order or in a scattered one; one block is left over."""
    sizes = [-(-(start + n) // BLOCK_SIZE) for start, n in lengths]
    num_blocks = sum(sizes) + 1
    order = np.random.default_rng(1).permutation(num_blocks).tolist() if scattered else list(range(num_blocks))
    return [[order.pop(0) for _ in range(size)] for size in sizes]


def make_attention(lengths, kv, shape, *, scattered, dtype=torch.float32):
    """The attention of a step over rows that lie in the blocks of `block_tables`."""
    batch = InputBatch(len(lengths), max(start + n for start, n in lengths), BLOCK_SIZE)
    new = [
        NewRow(row, row, "", 0, 0, 1, int32(np.zeros(start + n)), int32(blocks), SamplingParams(seed=0))
        for row, ((start, n), blocks) in enumerate(zip(lengths, block_tables(lengths, scattered), strict=True))
    ]
    n = len(lengths)
    plan = StepPlan(
        0,
        0,
        0,
        new,
        b"",
        int32(range(n)),
        np.arange(n, dtype=np.int64).tobytes(),
        int32([start for start, _ in lengths]),
        int32([m for _, m in lengths]),
        np.ones(n, np.bool_).tobytes(),
    )
    batch.apply(plan)
    return PagedAttention(kv, prepare_inputs(batch, plan), batch, shape, dtype)


def reference(lengths, known, q, window=None):
    out, at = [], 0
    for (start, n), (k, v) in zip(lengths, known, strict=True):
        keys = k.double().repeat_interleave(HEADS // KV_HEADS, 1)
        values = v.double().repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("qhd,thd->hqt", q[at : at + n].double(), keys) / HEAD_DIM**0.5
        distance = start + torch.arange(n)[:, None] - torch.arange(start + n)
        is_seen = (distance >= 0) & (distance < (window or start + n))
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
        out.append(torch.einsum("hqt,thd->qhd", weights, values).reshape(n, -1))
        at += n
    return torch.cat(out)


ROW = st.one_of(
    st.tuples(st.integers(0, 70), st.just(1)),
    st.tuples(st.just(0), st.integers(1, 40)),
    st.tuples(st.integers(1, 70), st.integers(2, 40)),
)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(ROW, min_size=1, max_size=9), scattered=st.booleans())
def test_any_mixture_in_float32(lengths, scattered):
    attention, known, q, k, v = make_step(lengths, scattered=scattered)
    torch.testing.assert_close(attention(0, q, k, v).double(), reference(lengths, known, q), atol=3e-6, rtol=0)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(ROW, min_size=1, max_size=6), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_any_mixture_with_bfloat16_cache(lengths, dtype):
    attention, known, q, k, v = make_step(lengths, dtype=dtype, kv_dtype=torch.bfloat16)
    out = attention(0, q, k, v)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), reference(lengths, known, q), atol=5e-2, rtol=0)


def test_groups_that_are_cut_for_memory(monkeypatch):
    monkeypatch.setattr(attention_module, "_MAX_GROUP_ELEMENTS", 1)
    lengths = [(60, 1), (3, 1), (61, 1), (0, 30), (0, 31), (7, 20), (9, 20), (62, 1)]
    attention, known, q, k, v = make_step(lengths)
    assert len(attention.groups) == len(lengths)
    torch.testing.assert_close(attention(0, q, k, v).double(), reference(lengths, known, q), atol=3e-6, rtol=0)


@pytest.mark.parametrize(
    ("lengths", "kinds"),
    [
        ([(50, 1)] * 16, [IndexedGroup]),
        ([(0, 200)], [FreshGroup]),
        ([(0, 129), (0, 256)], [FreshGroup]),
        ([(64, 64)], [ChunkGroup]),
        ([(50, 1), (0, 1), (511, 1), (9, 300), (0, 300)], [IndexedGroup, ChunkGroup, FreshGroup]),
        ([(600, 1), (50, 1)], [IndexedGroup, IndexedGroup]),
    ],
)
def test_form_of_each_group(lengths, kinds):
    assert [type(group) for group in make_step(lengths)[0].groups] == kinds


def test_single_row_in_neighbouring_blocks_is_not_copied():
    assert isinstance(make_step([(50, 1)], scattered=False)[0].groups[0], ContiguousGroup)
    assert isinstance(make_step([(50, 1)])[0].groups[0], IndexedGroup)


def test_bfloat16_decodes_are_gathered():
    assert isinstance(make_step([(50, 1), (20, 1)], dtype=torch.bfloat16)[0].groups[0], DecodeGroup)


def test_number_of_groups_does_not_grow_with_rows():
    rng = np.random.default_rng(0)
    lengths = [(int(start), int(n)) for start, n in zip(rng.integers(0, 80, 64), rng.integers(1, 33, 64), strict=True)]
    assert len(make_step(lengths)[0].groups) <= 2 * 6


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(ROW, min_size=1, max_size=9), scattered=st.booleans(), window=st.integers(1, 90))
def test_any_mixture_under_a_window(lengths, scattered, window):
    attention, known, q, k, v = make_step(lengths, scattered=scattered, window=window)
    expected = reference(lengths, known, q, window)
    torch.testing.assert_close(attention(0, q, k, v).double(), expected, atol=3e-6, rtol=0)


@pytest.mark.parametrize("window", [1, 5, 64])
def test_a_window_in_bfloat16(window):
    lengths = [(60, 1), (3, 1), (0, 30), (7, 20), (0, 70)]
    attention, known, q, k, v = make_step(lengths, dtype=torch.bfloat16, window=window)
    expected = reference(lengths, known, q, window)
    torch.testing.assert_close(attention(0, q, k, v).double(), expected, atol=5e-2, rtol=0)


def test_keys_behind_every_window_are_not_gathered():
    """The saving, and its proof: what lies there is no number."""
    attention, known, q, k, v = make_step([(600, 1), (900, 1)], window=100)
    (group,) = attention.groups
    assert group.index.shape == (2, HEADS, 100)
    expected = reference([(600, 1), (900, 1)], known, q, 100)
    torch.testing.assert_close(attention(0, q, k, v).double(), expected, atol=3e-6, rtol=0)


def test_a_row_inside_the_window_attends_as_without_one():
    lengths = [(50, 1), (0, 40), (9, 30)]
    without = [type(group) for group in make_step(lengths)[0].groups]
    assert [type(group) for group in make_step(lengths, window=51)[0].groups] == without
    assert FreshGroup not in [type(group) for group in make_step(lengths, window=39)[0].groups]


def test_each_layer_has_its_own_window():
    """Layers without a window, with one, and with another, over the same keys."""
    shape = msgspec.structs.replace(SHAPE, num_layers=4, windows=(None, 7, 30, None))
    lengths = [(40, 1), (20, 25), (0, 33)]
    one, known, q, k, v = make_step(lengths)
    kv = KVTensors(shape, one.kv.num_blocks, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    kv.tensor.copy_(one.kv.tensor.expand_as(kv.tensor))
    attention = make_attention(lengths, kv, shape, scattered=True)
    for layer, window in enumerate(shape.windows):
        expected = reference(lengths, known, q, window)
        torch.testing.assert_close(attention(layer, q, k, v).double(), expected, atol=3e-6, rtol=0)
