"""The benchmarks of proposers: what they count, and that their commands run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from callboard.bench import proposers
from callboard.bench.proposer_replay import Text, replay
from callboard.bench.proposers import Steps, phrase_tokens
from callboard.speculative.proposer import ProposedDrafts


class Oracle:
    """Knows the text; its n-th draft of each step is wrong."""

    def __init__(self, wrong: int) -> None:
        self._wrong = wrong

    def follow(self, row, num_given_tokens, sharing_key):
        pass

    def forget(self, rows):
        pass

    def propose(self, rows, token_ids, num_known, max_drafts):
        drafts = token_ids[0, num_known[0] : num_known[0] + max_drafts[0]].copy()
        drafts[self._wrong : self._wrong + 1] += 1
        return ProposedDrafts(np.array([drafts.size], np.int32), drafts)


@pytest.mark.parametrize(("wrong", "accepted"), [(0, 0), (2, 2), (4, 4)])
def test_drafts_are_accepted_up_to_the_first_wrong_one(wrong, accepted):
    """Outputs of 21 tokens: the first is known, 20 follow in steps of (accepted + 1)."""
    texts = [Text([1, 2, 3], list(range(10, 31))), Text([], list(range(50, 71)))]
    found = replay(Oracle(wrong), texts, 4)
    assert found.tokens_per_step == accepted + 1
    drafts = {0: [4] * 17 + [3, 2, 1], 2: [4] * 6 + [2], 4: [4] * 4}[wrong]  # no draft behind the end of the text
    if wrong != 2:
        assert found.drafts_per_step == np.mean(drafts)
        assert found.acceptance == pytest.approx(accepted * len(drafts) / sum(drafts))


def test_phrases_repeat():
    tokens = phrase_tokens(np.random.default_rng(1), 2000)
    assert (tokens.dtype, tokens.size) == (np.int32, 2000)
    pairs = {tuple(pair) for pair in np.stack([tokens[:-1], tokens[1:]], 1).tolist()}
    assert 100 < len(pairs) < 1500


def test_every_case_is_reported(capsys):
    proposers.report([1, 3], [20], 4, 2, as_json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    cases = [(case["method"], case["kind"], case["rows"]) for case in found]
    assert cases == [(m, k, n) for m in ("ngram", "suffix") for k in ("phrases", "loop") for n in (1, 3)]
    assert all(case["prompt_us"] > 0 and 0 < case["step_p50_us"] <= case["step_p90_us"] for case in found)


def test_a_step_is_one_token_more():
    steps = Steps("suffix", "phrases", 2, 30, 4, 3)
    steps.prompt_us()
    before = steps._known.copy()
    steps.step_us()
    assert (steps._known - before).tolist() == [1, 1]
