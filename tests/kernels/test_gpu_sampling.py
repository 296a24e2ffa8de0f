"""The GPU's sampling kernels beside their torch twins, a brute-force filter, and the law of their parameters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from callboard.kernels.gpu.philox import gumbel_block, gumbel_token, philox4x32
from callboard.kernels.gpu.sampling import SamplingKind
from callboard.kernels.gpu.sampling_rows import Column, Flag
from callboard.kernels.logprobs import gather_logprobs
from callboard.kernels.philox import gumbel_rows
from callboard.kernels.sampling import process_temperature, processed_logits, sample
from callboard.tests.kernels.gpu import DEVICE, IS_INTERPRETED
from callboard.tests.kernels.gpu_sampling import Step, make_batch, thresholds
from callboard.tests.kernels.sampling_laws import filtered_law, g_test
from callboard.tests.kernels.test_filters import brute_force
from callboard.tests.kernels.test_philox import KNOWN_ANSWERS

SIZES = [1, 7, 1023, 4096]


def random_step(n, vocab_size, seed=0, spread=3.0):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, spread, (n, vocab_size)).astype(np.float32))
    batch = make_batch(
        n,
        temperature=rng.choice([0.0, 0.3, 1.0, 1.8], n),
        top_k=rng.choice([0, 1, 3, 500, 10_000], n),
        top_p=rng.choice([1.0, 0.9, 0.2], n),
        min_p=rng.choice([0.0, 0.1], n),
        seeds=rng.integers(-(2**63), 2**63 - 1, n),
        indexes=rng.integers(0, 100_000, n),
        choices=rng.integers(0, 9, n),
    )
    return logits, batch


# Noise


@triton.jit
def _philox(counters, keys, words):
    w0, w1, w2, w3 = philox4x32(
        tl.load(counters).to(tl.uint32),
        tl.load(counters + 1).to(tl.uint32),
        tl.load(counters + 2).to(tl.uint32),
        tl.load(counters + 3).to(tl.uint32),
        tl.load(keys).to(tl.uint32),
        tl.load(keys + 1).to(tl.uint32),
    )
    tl.store(words, w0.to(tl.int64))
    tl.store(words + 1, w1.to(tl.int64))
    tl.store(words + 2, w2.to(tl.int64))
    tl.store(words + 3, w3.to(tl.int64))


@triton.jit
def _noise(noise, index, choice, keys, BLOCK: tl.constexpr):
    low, high = tl.load(keys).to(tl.uint32), tl.load(keys + 1).to(tl.uint32)
    index, choice = tl.load(index).to(tl.uint32), tl.load(choice).to(tl.uint32)
    tl.store(noise + tl.arange(0, BLOCK), gumbel_block(0, index, choice, low, high, BLOCK))
    token = tl.program_id(0)
    tl.store(noise + BLOCK + token, gumbel_token(token, index, choice, low, high))


def as_int64(values):
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_words_are_the_known_answers(counter, key, expected):
    words = as_int64([0] * 4)
    _philox[(1,)](as_int64(counter), as_int64(key), words)
    assert tuple(words.tolist()) == expected


@pytest.mark.parametrize("seed", [12345, 2**63 + 77])
def test_noise_is_that_of_torch(seed):
    noise = torch.empty(256 + 8, device=DEVICE)
    _noise[(8,)](noise, as_int64([70_000]), as_int64([3]), as_int64([seed & 0xFFFFFFFF, seed >> 32]), BLOCK=256)
    signed = as_int64([int(np.uint64(seed).view(np.int64))])
    expected = gumbel_rows(signed, as_int64([70_000]), as_int64([3]), 256)[0]
    tolerance = {"rtol": 3e-7, "atol": 3e-7} if IS_INTERPRETED else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(noise[:256], expected, **tolerance)
    assert torch.equal(noise[256:], noise[:8])


# Tokens


@pytest.mark.parametrize(("vocab_size", "dtype"), [*((size, torch.float32) for size in SIZES), (1023, torch.bfloat16)])
def test_tokens_are_those_of_the_twin(vocab_size, dtype):
    logits, batch = random_step(4, vocab_size, seed=vocab_size)
    logits = logits.to(dtype)
    tokens = Step(logits, batch, padding=2).run()
    assert torch.equal(tokens, sample(logits.float(), batch))


def test_greedy_takes_the_lowest_of_equals_whatever_its_program():
    logits = torch.zeros(4, 9000)
    logits[0, [8999, 4100, 5000]] = 1.0
    logits[1] = -torch.inf
    logits[2, 8999] = torch.inf
    logits[3, 17] = torch.nan
    step = Step(logits, make_batch(4, temperature=0.0), kind=SamplingKind())
    assert step.run()[:3].tolist() == [4100, 0, 8999]
    assert 0 <= int(step.outputs.tokens[3]) < 9000
    assert step.workspace.arrived.sum() == 0


@pytest.mark.parametrize("filters", [{}, {"top_k": 9, "top_p": 0.9}])
def test_rows_without_a_possible_token_or_with_nan_leave_the_others_alone(filters):
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 2, (4, 50)).astype(np.float32))
    batch = make_batch(4, **filters)
    expected = sample(logits, batch)
    logits[1, 7], logits[2] = torch.nan, -torch.inf
    tokens = Step(logits, batch).run()
    assert torch.equal(tokens[[0, 3]], expected[[0, 3]])
    assert all(0 <= token < 50 for token in tokens.tolist())


@pytest.mark.parametrize("temperature", [1e-38, 1e-3, 1e30])
def test_extreme_temperatures(temperature):
    logits, _ = random_step(2, 300)
    batch = make_batch(2, temperature=temperature, top_p=0.95, top_k=40)
    assert torch.equal(Step(logits, batch).run(), sample(logits, batch))


def test_a_row_is_drawn_alone_as_in_any_batch_and_from_strided_logits():
    logits, batch = random_step(5, 1100, seed=4)
    wide = torch.full((5, 1200), torch.nan)
    wide[:, :1100] = logits
    together = Step(logits, batch).run()
    for i in (0, 4):
        one = batch.take(torch.tensor([i]))
        step = Step(logits[i : i + 1], one)
        step.logits = wide.to(DEVICE)[i : i + 1, :1100]
        assert step.run() == together[i]


@pytest.mark.nightly
@pytest.mark.parametrize("filters", [{}, {"temperature": 0.7, "top_k": 9, "top_p": 0.9}])
def test_draws_follow_their_law(filters):
    n, vocab_size = 200 if IS_INTERPRETED else 5000, 24
    logits = torch.from_numpy(np.random.default_rng(3).permutation(np.linspace(-4, 3.3, vocab_size)).astype(np.float32))
    law = filtered_law(dict(enumerate(logits.double().tolist())), **filters)
    tokens = Step(logits.expand(n, -1), make_batch(n, **filters)).run()
    assert g_test(Counter(tokens.tolist()), law) > 1e-4


# Filters


def kept(logits, **filters):
    """bool [n, vocab]: what the kernel keeps."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    batch = make_batch(logits.shape[0], **filters)
    return (process_temperature(logits, batch.temperature) >= thresholds(logits, batch)[:, None]).numpy()


@pytest.mark.parametrize("vocab_size", [7, 1023, 6000])
@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.01, 1.0, 5.0]),
    steps=st.sampled_from([0, 0, 7]),
    top_k=st.sampled_from([0, 1, 2, 5, 300, 10_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
def test_what_is_kept_equals_brute_force(vocab_size, seed, spread, steps, top_k, top_p, min_p):
    row = np.random.default_rng(seed).normal(0, spread, (1, vocab_size)).astype(np.float32)
    if steps:
        row = np.round(row * steps) / np.float32(steps)  # many ties
    expected, is_near = brute_force(row[0], top_k, top_p, min_p)
    assume(not is_near)
    assert set(np.flatnonzero(kept(row, top_k=top_k, top_p=top_p, min_p=min_p)[0])) == expected


def test_borders_and_ties():
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    assert kept(logits, top_p=0.6).tolist() == [[True, True, False, False]]
    assert kept(logits, top_p=0.0).tolist() == [[True, False, False, False]]
    assert kept(logits, top_k=2, top_p=0.62).tolist() == [[True, False, False, False]]
    assert kept(logits, top_k=2, top_p=0.63).tolist() == [[True, True, False, False]]
    assert kept(logits, min_p=0.5, top_p=0.63).tolist() == [[True, True, False, False]]
    assert kept([[1.0, 3.0, 1.0, 2.0, 1.0]], top_k=3).tolist() == [[True] * 5]
    assert kept([[0.0] * 5000], top_p=0.3).all()
    assert kept([[-np.inf, 1.0, -np.inf, 0.0]], top_p=0.99).tolist() == [[False, True, False, True]]


def test_more_around_a_border_than_a_program_holds_at_once():
    """Depths apart by a float's last bits, and by powers of ten: both ends of the search."""
    row = np.zeros((1, 12_000), np.float32)
    row[0] = np.linspace(0, -1e-3, 12_000)
    found = kept(row, top_p=0.5)[0]
    assert abs(found.sum() - 6000) < 20
    assert found[: found.sum()].all()
    assert kept(row, top_k=9000).sum() == 9000
    depths = -np.logspace(-30, 30, 12_000).astype(np.float32)[None]
    assert kept(depths, top_k=7000).sum() == 7000


# Log-probabilities


@pytest.mark.parametrize(
    ("vocab_size", "is_processed", "dtype"),
    [(7, True, torch.float32), (4500, True, torch.bfloat16), (4500, False, torch.float32)],
)
def test_logprobs_are_those_of_the_twin(vocab_size, is_processed, dtype):
    logits, batch = random_step(4, vocab_size, seed=vocab_size + 1)
    logits = logits.to(dtype)
    num_top = min(6, vocab_size)
    columns = {
        Column.NUM_TOP: np.array([num_top, 0, -1, 3]),
        Column.FLAGS: np.full(4, Flag.PROCESSED_LOGPROBS * is_processed),
    }
    step = Step(logits, batch, columns=columns, kind=SamplingKind(True, True, has_logprobs=True), padding=1)
    tokens = step.run()
    of = processed_logits(logits.float(), batch) if is_processed else logits.float()
    chosen, _, top = gather_logprobs(of, tokens, num_top)
    outputs = step.outputs
    for i, count in ((0, num_top), (1, 0), (3, 3)):
        torch.testing.assert_close(outputs.logprobs[i].cpu(), chosen[i], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outputs.top_logprobs[i, :count].cpu(), top[i, :count], rtol=1e-5, atol=1e-5)
        ids = outputs.top_ids[i, :count].long().cpu()
        assert len(set(ids.tolist())) == count
        torch.testing.assert_close(of[i, ids], of[i].sort(descending=True).values[:count])
    assert outputs.logprobs[2] == 0
    assert outputs.logprobs[4] == 0


# Bias and penalties


def test_changed_logits_are_those_of_the_twins_and_tokens_are_counted():
    vocab_size, n = 5000, 4
    rng = np.random.default_rng(8)
    logits = torch.from_numpy(rng.normal(0, 3, (n, vocab_size)).astype(np.float32))
    flags = np.array([Flag.CHANGED | Flag.PENALIZED, 0, Flag.CHANGED, Flag.CHANGED | Flag.PENALIZED])
    columns = {
        Column.FLAGS: flags,
        Column.NUM_BIAS: np.array([3, 2, 2, 0]),
        Column.REPETITION: np.array([1.3, 1.0, 1.0, 0.7], np.float32),
        Column.FREQUENCY: np.array([0.3, 9.0, 9.0, 0.0], np.float32),
        Column.PRESENCE: np.array([-0.4, 9.0, 9.0, 1.5], np.float32),
    }
    kind = SamplingKind(has_changes=True, has_penalties=True)
    step = Step(logits, make_batch(n, temperature=0.0), columns=columns, kind=kind, padding=1)
    tensors, rows = step.tensors, step.rows.tolist()
    counts = torch.from_numpy(rng.choice([0, 0, 0, 1, 5, -(2**31), -(2**31) + 2], (n, vocab_size)).astype(np.int32))
    tensors.counts[rows] = counts.to(DEVICE)
    bias_ids, bias = torch.tensor([4999, 3, 4096], dtype=torch.int32), torch.tensor([2.5, -torch.inf, 7.0])
    tensors.bias_ids[rows, :3], tensors.bias[rows, :3] = bias_ids.to(DEVICE), bias.to(DEVICE)
    tokens = step.run()

    expected = logits.clone()
    expected[0, bias_ids.long()] += bias
    expected[2, bias_ids.long()[:2]] += bias[:2]
    for i in (0, 3):
        repetition, frequency, presence = (
            torch.tensor(columns[column][i]) for column in (Column.REPETITION, Column.FREQUENCY, Column.PRESENCE)
        )
        times = (counts[i] & 0x7FFFFFFF).float()
        used = torch.where(expected[i] > 0, expected[i] / repetition, expected[i] * repetition)
        used = used - times * frequency - presence * (times > 0)
        expected[i] = torch.where(counts[i] == 0, expected[i], used)
    changed = tensors.changed[[0, 2, 3]].cpu()
    torch.testing.assert_close(changed, expected[[0, 2, 3]], rtol=0, atol=0)
    assert torch.equal(tokens, expected.argmax(1))
    for i in range(n):
        counts[i, tokens[i]] += int(bool(flags[i] & Flag.PENALIZED))
    assert torch.equal(tensors.counts[rows].cpu(), counts)
