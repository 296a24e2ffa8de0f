"""A draft model with keys and values of its own. One that is the target itself is right about every token, at any
temperature, if and only if its keys and values are those of the row: whatever was computed, shared or undone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.execution.draft_model import DraftModelProposer
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.speculative.proposer import ProposedDrafts
from callboard.tests.models.families import Engine, Loaded, load, make_oracle, make_prompt, oracle_logits

NUM_TOKENS = 20
KINDS = [
    SamplingParams(seed=0, temperature=0.0),
    SamplingParams(seed=5, temperature=0.9),
    SamplingParams(seed=6, temperature=1.2, top_k=20, top_p=0.9, min_p=0.01),
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(make_oracle("qwen2"), tmp_path_factory.mktemp("qwen2"))


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_the_target_itself_is_always_right(loaded: Loaded, data: st.DataObject) -> None:
    """Twice the same prompts, whose blocks are found in the prefix cache the second time, and prompts that go on
    differently behind the same beginning."""
    begin = make_prompt(1, 9)
    prompts = [begin + make_prompt(seed, 2 + seed) for seed in range(data.draw(st.integers(1, 6)))]
    sampling = [data.draw(st.sampled_from(KINDS)) for _ in prompts]
    engine = Engine(
        loaded.model,
        draft_model=loaded.model,
        max_num_seqs=6,
        max_drafts=data.draw(st.integers(1, 8)),
        pipeline_depth=data.draw(st.integers(1, 3)),
        max_num_batched_tokens=data.draw(st.sampled_from([9, 40, 200])),
        num_blocks=data.draw(st.sampled_from([14, 40, 400])),
        prefix_caching=data.draw(st.booleans()),
    )
    texts = [engine.generate(prompts, NUM_TOKENS, sampling) for _ in range(2)]
    assert texts[0] == texts[1]
    numbers = engine.scheduler.statistics()
    assert numbers.num_accepted_tokens == numbers.num_draft_tokens > 0


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_step_gives_all_that_it_can(loaded: Loaded, kind: SamplingParams) -> None:
    engine = Engine(loaded.model, draft_model=loaded.model, max_drafts=3)
    engine.generate([make_prompt(3, 12)], 1 + 4 * 5, [kind])
    numbers = engine.scheduler.statistics()
    assert (numbers.num_draft_tokens, numbers.num_accepted_tokens) == (3 * 5, 3 * 5)


def test_drafts_are_what_the_other_model_says(loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind drafts that were rejected, in chunks, through preemptions: each is the likeliest by transformers."""
    another = load(make_oracle("llama-biases", num_hidden_layers=2), tmp_path)
    drafted: list[tuple[list[int], list[int]]] = []
    propose = DraftModelProposer.propose

    def noted(self: DraftModelProposer, *asked: np.ndarray) -> ProposedDrafts:
        rows, token_ids, num_known, _ = asked
        known = [token_ids[row, : num_known[row]].tolist() for row in rows.tolist()]
        found = propose(self, *asked)
        parts = np.split(found.token_ids, np.cumsum(found.counts)[:-1])
        drafted.extend(zip(known, (part.tolist() for part in parts), strict=True))
        return found

    monkeypatch.setattr(DraftModelProposer, "propose", noted)
    engine = Engine(
        loaded.model,
        draft_model=another.model,
        max_drafts=4,
        max_num_batched_tokens=14,
        num_blocks=18,
        pipeline_depth=2,
    )
    engine.generate([make_prompt(seed, 2 + 5 * seed) for seed in range(4)], NUM_TOKENS)
    numbers = engine.scheduler.statistics()
    assert numbers.num_preemptions > 0 and numbers.num_accepted_tokens < numbers.num_draft_tokens / 2
    num_checked = 0
    for known, drafts in drafted:
        logits = oracle_logits(another.oracle, [*known, *drafts])[len(known) - 1 :]
        for draft, row in zip(drafts, logits, strict=False):
            assert float(row.max() - row[draft]) < 1e-4, (known, drafts)
            num_checked += 1
    assert num_checked > 50


def test_it_computes_no_block_that_is_there(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a prompt that came before; and of a prefix that only the target has computed it computes all."""
    engine = Engine(
        loaded.model, draft_model=loaded.model, max_drafts=2, max_num_batched_tokens=100, prefix_caching=True
    )
    counted: list[int] = []
    proposer = engine.runner._drafter.proposer  # type: ignore[union-attr]
    forward = proposer._forward  # type: ignore[union-attr]
    compute = forward.hidden_states

    def count(inputs, batch):  # type: ignore[no-untyped-def]
        counted.append(int(inputs.num_tokens.sum()))
        return compute(inputs, batch)

    monkeypatch.setattr(forward, "hidden_states", count)
    prompt = make_prompt(7, 30)
    engine.generate([prompt], 2)  # no draft has room: the draft model computes nothing
    assert counted == []
    engine.generate([prompt], 5)
    assert counted[0] == 31, "the prompt, whose blocks the target found, and the first token"
    counted.clear()
    engine.generate([prompt], 5)
    assert counted[0] == 31 - 28, "7 blocks of 4 are there"
