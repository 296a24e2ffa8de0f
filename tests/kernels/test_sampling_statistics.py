"""5,000 samples of a token against the law of its parameters: the support first, then a G-test."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch

from callboard.kernels.masks import add_bias
from callboard.kernels.penalties import penalize
from callboard.kernels.sampling import SamplingBatch, processed_logits, sample
from callboard.tests.kernels.sampling_laws import filtered_law, g_test, holds, two_sample_g

VOCAB = 60
LOGITS = torch.from_numpy(np.random.default_rng(3).permutation(np.linspace(-4, 3.3, VOCAB)).astype(np.float32))
LAW_LOGITS = dict(enumerate(LOGITS.double().tolist()))


def make_batch(n, first_seed=0, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, choices=None, seeds=None, index=0):
    return SamplingBatch(
        temperature=torch.full((n,), temperature),
        top_k=torch.full((n,), top_k),
        top_p=torch.full((n,), top_p),
        min_p=torch.full((n,), min_p),
        seeds=torch.arange(first_seed, first_seed + n) if seeds is None else seeds,
        indexes=torch.full((n,), index),
        choices=torch.zeros(n, dtype=torch.int64) if choices is None else choices,
    )


def draw(n, first_seed, logits=LOGITS, **settings):
    """Counts of tokens, one sample a seed."""
    tokens = sample(logits.expand(n, -1), make_batch(n, first_seed, **settings))
    return Counter(tokens.tolist())


def test_the_tests_find_a_shift_of_three_points_and_alarm_at_their_level():
    """5,000 samples: p of a law that is 3 points off is far below the threshold; 5 % of true laws are below 0.05."""
    law = filtered_law({token: -math.log(token + 1) for token in range(20)})
    shifted = {token: p + {0: 0.03, 1: -0.03}.get(token, 0) for token, p in law.items()}
    generator = random.Random(1)

    def counts(of, n):
        return Counter(generator.choices(list(of), list(of.values()), k=n))

    alarms = [g_test(counts(law, 1000), law) < 0.05 for _ in range(200)]
    assert 0.02 < sum(alarms) / 200 < 0.10
    alarms = [two_sample_g(counts(law, 1000), counts(law, 1000)) < 0.05 for _ in range(200)]
    assert 0.02 < sum(alarms) / 200 < 0.10
    assert g_test(counts(shifted, 5000), law) < 1e-4
    assert g_test(Counter({0: 4999, 99: 1}), {0: 1.0, 99: 0.0}) == 0


ONE = {
    "temperature": [0.3, 0.7, 1.5],
    "top_k": [1, 2, 5, VOCAB],
    "top_p": [0.1, 0.5, 0.9],
    "min_p": [0.05, 0.5],
}
SINGLE = [{name: value} for name, values in ONE.items() for value in values]
PAIRS = [a | b for a, b in itertools.combinations(SINGLE, 2) if a.keys() != b.keys()]
CLAIMS = [{}, *SINGLE, *PAIRS]


@pytest.mark.parametrize("part", range(8))
def test_temperature_and_filters_and_their_pairs(part):
    for settings in CLAIMS[part::8]:
        law = filtered_law(LAW_LOGITS, **settings)
        assert holds(lambda seed, n: g_test(draw(n, seed, **settings), law), len(CLAIMS)), settings  # noqa: B023
        if list(law.values()).count(0.0) == VOCAB - 1:  # one token is left
            assert draw(100, 7, **settings) == {max(law, key=law.get): 100}


def test_processed_logits_are_the_law():
    """Their softmax is what the brute-force filters give, and zero exactly where these cut."""
    for settings in CLAIMS:
        law = filtered_law(LAW_LOGITS, **settings)
        probabilities = processed_logits(LOGITS[None], make_batch(1, **settings)).double().softmax(1)[0]
        np.testing.assert_allclose(probabilities.numpy(), [law[token] for token in range(VOCAB)], atol=1e-6)
        assert [p > 0 for p in probabilities.tolist()] == [law[token] > 0 for token in range(VOCAB)], settings


def log_odds(counts, a, b):
    """(log-odds of a against b, its standard error)"""
    return math.log(counts[a] / counts[b]), math.sqrt(1 / counts[a] + 1 / counts[b])


@pytest.mark.parametrize("bias", [-2.0, -0.5, 1.0, 3.0])
def test_bias_multiplies_the_odds(bias):
    logits = torch.zeros(1, 8)
    add_bias(logits, torch.tensor([0]), torch.tensor([5]), torch.tensor([bias]))
    odds, error = log_odds(draw(20_000, 0, logits), 5, 2)
    assert abs(odds - bias) < 4 * error


def test_two_even_tokens_are_binomial():
    """Two tokens far above all others: 5,000 samples, so each comes 2,500 times, give or take 4 x 35.4."""
    logits = LOGITS[None].clone()
    level = 100.0 - logits[0, [7, 8]]
    add_bias(logits, torch.tensor([0, 0]), torch.tensor([7, 8]), level)
    counts = draw(5000, 0, logits)
    assert set(counts) == {7, 8}
    assert abs(counts[7] - 2500) < 4 * math.sqrt(5000 / 4)


@pytest.mark.parametrize(("count", "frequency", "presence"), [(1, 0.5, 0.0), (4, 0.5, 0.0), (4, 0.25, 0.75), (0, 2, 2)])
def test_penalties_lower_the_odds_by_count_times_frequency_and_presence_once(count, frequency, presence):
    logits = torch.tensor([[1.0, 1.0, 0.0, 0.5]])
    one = {"repetition": 1.0, "frequency": float(frequency), "presence": float(presence)}
    penalize(
        logits, torch.tensor([0]), torch.tensor([1]), torch.tensor([float(count)]),
        **{name: torch.tensor([value]) for name, value in one.items()},
    )  # fmt: skip
    odds, error = log_odds(draw(20_000, 0, logits), 1, 0)
    assert abs(odds + count * frequency + (presence if count else 0)) < 4 * error


# Seeds


def pairs(first, second):
    return Counter((first * VOCAB + second).tolist())


def shuffled(tokens, seed):
    return tokens[torch.randperm(tokens.shape[0], generator=torch.Generator().manual_seed(seed))]


TWO_TO_64 = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 20_000))


@pytest.mark.parametrize("spread", ["ascending", "anywhere"])
def test_two_thousand_seeds_behave_like_one_source(spread):
    law = filtered_law(LAW_LOGITS, temperature=0.7)

    def p_value(first, n):
        seeds = torch.arange(first, first + n) if spread == "ascending" else TWO_TO_64[-n:]
        tokens = sample(LOGITS.expand(n, -1), make_batch(n, seeds=seeds, temperature=0.7))
        return g_test(Counter(tokens.tolist()), law)

    assert holds(p_value, 2, num_samples=2000)


@pytest.mark.parametrize("neighbour", ["seed", "choice", "position"])
def test_neighbours_are_independent(neighbour):
    """Pairs of tokens of (seed s, s + 1), of choices or of positions of one seed: as frequent as pairs of strangers."""

    def p_value(first, n):
        seeds = torch.arange(first, first + 2 * n, 2)
        ones = torch.ones(n, dtype=torch.int64)
        other = {"seed": {"seeds": seeds + 1}, "choice": {"choices": ones}, "position": {"index": 1}}[neighbour]
        settings = {"seeds": seeds, "temperature": 0.6}
        a, b = (sample(LOGITS.expand(n, -1), make_batch(n, **arguments)) for arguments in (settings, settings | other))
        return two_sample_g(pairs(a, b), pairs(a, shuffled(b, first)))

    assert holds(p_value, 3)


def test_choices_of_one_seed_have_the_law_and_all_differ():
    law = filtered_law(LAW_LOGITS)

    def tokens(first, n):
        seeds = torch.full((n,), first + 17)
        return sample(LOGITS.expand(n, -1), make_batch(n, seeds=seeds, choices=torch.arange(n)))

    assert holds(lambda first, n: g_test(Counter(tokens(first, n).tolist()), law), 1)
