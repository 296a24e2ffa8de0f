"""Penalties against transformers' processor and against the formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from callboard.kernels.penalties import penalize

VOCAB = 1023


def penalized(logits, used, *, repetition=1.0, frequency=0.0, presence=0.0):
    """used: for each row {token id: times in the output}."""
    rows = torch.tensor([row for row, counts in enumerate(used) for _ in counts], dtype=torch.int64)
    token_ids = torch.tensor([token for counts in used for token in counts], dtype=torch.int64)
    counts = torch.tensor([float(count) for counts in used for count in counts.values()])
    changed = logits.clone()
    numbers = {"repetition": repetition, "frequency": frequency, "presence": presence}
    penalize(changed, rows, token_ids, counts, **{k: torch.full(counts.shape, v) for k, v in numbers.items()})
    return changed


@pytest.mark.parametrize("repetition", [0.3, 1.0, 1.1, 2.0])
def test_repetition_equals_transformers(repetition):
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 4, (6, VOCAB)).astype(np.float32))
    tokens = torch.from_numpy(rng.integers(0, VOCAB, (6, 200)))
    expected = RepetitionPenaltyLogitsProcessor(repetition)(tokens, logits.clone())
    used = [dict.fromkeys(set(row), 0) for row in tokens.tolist()]
    assert torch.equal(penalized(logits, used, repetition=repetition), expected)


def test_all_three_by_their_formulas():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 4, (3, VOCAB)).astype(np.float32)
    used = [{int(t): int(rng.integers(0, 5)) for t in rng.choice(VOCAB, 50, replace=False)} for _ in range(3)]
    expected = logits.astype(np.float64)
    for row, counts in enumerate(used):
        for token, count in counts.items():
            expected[row, token] *= 1 / 1.3 if expected[row, token] > 0 else 1.3
            expected[row, token] -= 0.7 * count + (0.4 if count else 0.0)
    got = penalized(torch.from_numpy(logits), used, repetition=1.3, frequency=0.7, presence=0.4)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)
    untouched = np.ones((3, VOCAB), bool)
    for row, counts in enumerate(used):
        untouched[row, list(counts)] = False
    assert (got.numpy()[untouched] == logits[untouched]).all()


def test_tokens_of_the_prompt_alone_are_only_repetitions():
    logits = torch.tensor([[1.0, -1.0, 0.5]])
    assert torch.equal(penalized(logits, [{0: 0, 1: 0}], frequency=2.0, presence=2.0), logits)
    assert penalized(logits, [{0: 0, 1: 0}], repetition=2.0).tolist() == [[0.5, -2.0, 0.5]]


def test_negative_penalties_favour():
    logits = torch.zeros(1, 4)
    assert penalized(logits, [{2: 3}], frequency=-0.5, presence=-1.0).tolist() == [[0.0, 0.0, 2.5, 0.0]]


def test_what_is_masked_stays_masked_and_nothing_becomes_infinite():
    logits = torch.tensor([[-torch.inf, 3e38, -3e38, 1.0]])
    got = penalized(logits, [{0: 2, 1: 1, 2: 1}], repetition=1e-3, frequency=2.0, presence=-2.0)
    assert got[0, 0] == -torch.inf
    assert got[0, 1:].isfinite().all()
