"""The kernels that verify drafts beside their twin in torch, whose laws have tests of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.kernels.gpu.rejection import verify_rows
from callboard.kernels.gpu.sampling import SamplingKind
from callboard.kernels.rejection import NO_DRAFT, verify
from callboard.kernels.sampling import sample
from callboard.tests.kernels.gpu import DEVICE
from callboard.tests.kernels.gpu_sampling import Step, make_batch
from callboard.tests.kernels.test_gpu_sampling import random_step


class VerifyingStep(Step):
    """Draws as a step without drafts does, then verifies."""

    def run_with(self, drafts, proposed=None):
        """drafts: int64 [n]; proposed: float32 [n, vocab]. int64 [n] tokens, on the CPU."""
        self.run()
        padding = self.logits.shape[0] - self.num_places
        drafts = torch.cat((drafts, torch.zeros(padding, dtype=torch.int64))).int().to(DEVICE)
        if proposed is not None:
            proposed = torch.cat((proposed, torch.full((padding, proposed.shape[1]), torch.nan))).to(DEVICE)
        verify_rows(
            self.logits, self.tensors.changed if self.kind.has_changes else None, self.places, self.positions,
            self.tensors.table, drafts, proposed, self.outputs.tokens, self.workspace,
            has_filters=self.kind.has_filters,
        )  # fmt: skip
        assert self.workspace.arrived.sum() == 0
        return self.outputs.tokens[: self.num_places].long().cpu()


def expected_tokens(logits, batch, drafts, proposed=None):
    tokens = sample(logits, batch)
    rows = ((drafts != NO_DRAFT) & (batch.temperature != 0)).nonzero()[:, 0]
    tokens[rows] = verify(
        logits[rows], batch.take(rows), drafts[rows], None if proposed is None else proposed[rows]
    )  # fmt: skip
    return tokens


def guesses(logits, seed):
    """int64 [n]: the likeliest token, any, or none."""
    rng = np.random.default_rng(seed)
    n, vocab_size = logits.shape
    any_token = torch.from_numpy(rng.integers(-1, vocab_size, n))
    return torch.where(torch.from_numpy(rng.random(n) < 0.6), logits.float().argmax(1), any_token)


@pytest.mark.parametrize("has_proposed", [False, True])
@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [*((size, torch.float32) for size in (1, 7, 1023, 4096, 9000)), (1023, torch.bfloat16)],
)
def test_tokens_are_those_of_the_twin(vocab_size, dtype, has_proposed):
    logits, batch = random_step(12, vocab_size, seed=vocab_size)
    logits = logits.to(dtype)
    drafts, proposed = guesses(logits, vocab_size), None
    if has_proposed:
        near = logits.float() + torch.from_numpy(np.random.default_rng(1).normal(0, 1, logits.shape)).float()
        proposed = near.softmax(1)
    tokens = VerifyingStep(logits, batch, padding=2).run_with(drafts, proposed)
    expected = expected_tokens(logits.float(), batch, drafts, proposed)
    assert torch.equal(tokens, expected)
    if vocab_size > 7:  # some of each
        is_verified = (drafts != NO_DRAFT) & (batch.temperature != 0)
        is_accepted = tokens == drafts
        assert is_accepted[is_verified].any() and not is_accepted[is_verified].all()


@pytest.mark.parametrize("has_proposed", [False, True])
def test_what_is_impossible_is_never_accepted(has_proposed):
    logits = torch.full((6, 5000), -torch.inf)
    logits[:, [11, 4500]] = torch.tensor([0.0, 1.0])
    logits[3:, 11] = -torch.inf  # one token is left
    drafts = torch.tensor([3, 4900, 11, 3, 4500, 11])
    proposed = torch.full((6, 5000), 1 / 5000) if has_proposed else None
    step = VerifyingStep(logits, make_batch(6), kind=SamplingKind(has_draws=True))
    tokens = step.run_with(drafts, proposed)
    assert set(tokens[:3].tolist()) <= {11, 4500}
    assert tokens[3:].tolist() == [4500] * 3
    assert torch.equal(tokens, expected_tokens(logits, make_batch(6), drafts, proposed))


def test_where_nothing_is_left_of_p_the_token_is_the_likeliest():
    logits = torch.tensor([[0.0, -torch.inf, 1.0]]).expand(8, -1)
    step = VerifyingStep(logits, make_batch(8), kind=SamplingKind(has_draws=True))
    assert step.run_with(torch.ones(8, dtype=torch.int64), torch.full((8, 3), 2.0)).tolist() == [2] * 8


def test_a_row_is_verified_alone_as_in_any_batch_and_from_strided_logits():
    logits, batch = random_step(9, 5000, seed=4)
    drafts = guesses(logits, 4)
    wide = torch.full((9, 5100), torch.nan)
    wide[:, :5000] = logits
    together = VerifyingStep(logits, batch).run_with(drafts)
    for i in range(9):
        step = VerifyingStep(logits[i : i + 1], batch.take(torch.tensor([i])))
        step.logits = wide.to(DEVICE)[i : i + 1, :5000]
        assert step.run_with(drafts[i : i + 1]) == together[i]
