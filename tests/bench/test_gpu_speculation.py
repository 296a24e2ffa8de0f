"""The bench of drafts on a device, on the CPU with a small model: what it verifies is what the model says."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from callboard.bench.gpu_models import SHAPES
from callboard.bench.gpu_speculation import Bench, ChainProposer, table
from callboard.tests.execution.late_device import LateDevice

SMALL = msgspec.structs.replace(
    SHAPES["llama-3.1-8b"], num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, intermediate_size=96,
    vocab_size=300, num_parameters=0,
)  # fmt: skip


def test_all_are_accepted_of_a_proposer_that_knows() -> None:
    bench = Bench("small", SMALL, LateDevice(records=True), 2, 3, 60)
    runner = bench.make_runner(1.0)
    measured = [bench.measure(runner, 2, drafts, 8, 48, 2) for drafts in (0, 3, None)]
    assert [m.tokens_a_step for m in measured[:2]] == [1.0, 4.0]
    lines = list(table(measured, 1.0))
    assert len(lines) == 3 and "automatic" in lines[-1]


def test_guesses_are_right_with_the_share_that_was_asked_for() -> None:
    next_ids = np.random.default_rng(1).permutation(300).astype(np.int32)
    rows, most = np.arange(100, dtype=np.int32), np.full(100, 4, np.int32)
    most[::2] = 2
    token_ids = np.random.default_rng(2).integers(0, 300, (100, 20)).astype(np.int32)
    drafts = ChainProposer(next_ids, 0.69).propose(rows, token_ids, np.full(100, 9, np.int32), most)
    assert (drafts.counts == most).all() and drafts.token_ids.size == 300
    right = iter(drafts.token_ids.tolist())
    hits = []
    for row, count in zip(rows, most.tolist(), strict=True):
        token = token_ids[row, 8]
        for _ in range(count):
            token = next_ids[token]
            hits.append(next(right) == token)
    assert np.mean(hits) == pytest.approx(0.69, abs=4 * (0.69 * 0.31 / 300) ** 0.5)
