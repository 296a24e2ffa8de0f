"""Tokens with drafts are those without, whatever the proposer, K, depth, batch, chunks, and room."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.mailbox.messages.sampling import SamplingParams
from callboard.speculative.make_proposer import make_proposer
from callboard.speculative.proposer import Proposer
from callboard.tests.models.families import MAX_LEN, VOCAB_SIZE, Engine, Loaded, load, make_oracle, make_prompt
from callboard.tests.speculative.scripted import ScriptedProposer

NUM_TOKENS = 24
GREEDY = SamplingParams(seed=0, temperature=0.0)
KINDS = [
    GREEDY,
    SamplingParams(seed=5, temperature=0.9),
    SamplingParams(seed=6, temperature=1.2, top_k=20, top_p=0.9, min_p=0.01),
    SamplingParams(seed=7, temperature=0.7, presence_penalty=0.8, frequency_penalty=0.4, repetition_penalty=1.3),
    SamplingParams(seed=8, temperature=0.0, repetition_penalty=1.5, logit_bias=((9, 4.0), (11, -5.0))),
    SamplingParams(seed=9, temperature=0.8, min_tokens=9, stop_token_ids=tuple(range(3, 60)), logprobs=2),
    SamplingParams(seed=10, temperature=1.0, bad_token_ids=((12,), (13, 14)), allowed_token_ids=tuple(range(3, 80))),
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(make_oracle("qwen2"), tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Some repeat themselves, so that there is something to look up."""
    repeating = [make_prompt(seed, 5) * 3 for seed in range(4)]
    return [make_prompt(seed, 3 + 2 * seed) for seed in range(12)] + repeating


@pytest.fixture(scope="module")
def texts(loaded: Loaded, prompts: list[list[int]]) -> list[list[list[int]]]:
    """Without drafts: of each kind, of each prompt."""
    engine = Engine(loaded.model, max_num_seqs=16, max_num_batched_tokens=400, num_blocks=400)
    return [engine.generate(prompts, NUM_TOKENS, [kind] * len(prompts)) for kind in KINDS]


def _proposer(name: str, prompts: list[list[int]], texts: list[list[int]]) -> Proposer:
    shares = {"right": 1.0, "often right": 0.8, "seldom right": 0.3, "wrong": 0.0}
    if name in shares:
        known = {tuple(prompt): text for prompt, text in zip(prompts, texts, strict=True)}
        return ScriptedProposer(known, shares[name], VOCAB_SIZE)
    return make_proposer(name, {}, 16, MAX_LEN)


PROPOSERS = ["right", "often right", "seldom right", "wrong", "ngram", "suffix"]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_tokens_are_those_without_drafts(
    loaded: Loaded, prompts: list[list[int]], texts: list[list[list[int]]], data: st.DataObject
) -> None:
    num_rows = data.draw(st.integers(1, 16))
    kinds = [data.draw(st.integers(0, len(KINDS) - 1)) for _ in range(num_rows)]
    chosen = data.draw(st.permutations(range(len(prompts))))[:num_rows]
    wanted = [texts[kind][index] for kind, index in zip(kinds, chosen, strict=True)]
    rows = [prompts[index] for index in chosen]
    name = data.draw(st.sampled_from(PROPOSERS))
    engine = Engine(
        loaded.model,
        _proposer(name, rows, wanted),
        max_num_seqs=16,
        max_drafts=data.draw(st.integers(1, 8)),
        pipeline_depth=data.draw(st.integers(1, 3)),
        max_num_batched_tokens=data.draw(st.sampled_from([17, 40, 200])),
        long_prefill_token_threshold=data.draw(st.sampled_from([0, 0, 5])),
        num_blocks=data.draw(st.sampled_from([16, 40, 400])),
        prefix_caching=data.draw(st.booleans()),
    )
    assert engine.generate(rows, NUM_TOKENS, [KINDS[kind] for kind in kinds]) == wanted


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_drafts", [1, 2, 3, 5, 8])
def test_right_drafts_are_accepted(
    loaded: Loaded, prompts: list[list[int]], texts: list[list[list[int]]], num_drafts: int, depth: int
) -> None:
    """With drafts that are always right a step gives 1 + K tokens: as many drafts are accepted as can be."""
    proposer = ScriptedProposer({tuple(prompts[3]): texts[0][3]}, 1.0, VOCAB_SIZE)
    engine = Engine(loaded.model, proposer, max_drafts=num_drafts, pipeline_depth=depth)
    assert engine.generate([prompts[3]], NUM_TOKENS, [GREEDY]) == [texts[0][3]]
    numbers = engine.scheduler.statistics()
    behind_first = NUM_TOKENS - 1
    num_steps = -(-behind_first // (1 + num_drafts))
    assert numbers.num_accepted_tokens == numbers.num_draft_tokens == behind_first - num_steps
    assert proposer.num_asked <= num_steps
