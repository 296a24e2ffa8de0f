"""Tokens with drafts are those without, whatever the proposer, K, depth, batch, chunks, and room."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.mailbox.messages.sampling import SamplingParams
from callboard.models.protocol import CausalLM
from callboard.speculative.make_proposer import make_proposer
from callboard.speculative.proposer import Proposer
from callboard.tests.models.families import MAX_LEN, VOCAB_SIZE, Engine, Loaded, load, make_oracle, make_prompt
from callboard.tests.speculative.grammar_rows import EOS, KEY, TOKENS, ConstrainedEngine
from callboard.tests.speculative.scripted import ScriptedProposer, StubbornProposer

NUM_TOKENS = 24
NUM_FORMED = 44
"""A whole object and what comes behind its end."""
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

FORMED = [0, 1, 3]
"""Kinds that are drawn under a grammar, too."""


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


def _proposer(name: str, prompts: list[list[int]], texts: list[list[int]]) -> Proposer | None:
    """None: a draft model."""
    if name in ("itself", "another"):
        return None
    shares = {"right": 1.0, "often right": 0.8, "seldom right": 0.3, "wrong": 0.0}
    if name in shares:
        known = {tuple(prompt): text for prompt, text in zip(prompts, texts, strict=True)}
        return ScriptedProposer(known, shares[name], VOCAB_SIZE)
    return make_proposer(name, {}, 16, MAX_LEN)


@pytest.fixture(scope="module")
def formed_texts(loaded: Loaded, prompts: list[list[int]]) -> list[list[list[int]]]:
    """As `texts`, of the first kinds, under the grammar."""
    engine = ConstrainedEngine(loaded.model, max_num_seqs=16, max_num_batched_tokens=400, num_blocks=400)
    keys = dict.fromkeys(range(len(prompts)), KEY)
    return [engine.generate(prompts, NUM_FORMED, [KINDS[kind]] * len(prompts), keys) for kind in FORMED]


@pytest.fixture(scope="module")
def draft_models(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CausalLM]:
    """The target itself, and a smaller one that agrees with it by chance alone."""
    small = make_oracle("llama-biases", num_hidden_layers=1, hidden_size=32, intermediate_size=48)
    return {"itself": loaded.model, "another": load(small, tmp_path_factory.mktemp("small")).model}


PROPOSERS = ["right", "often right", "seldom right", "wrong", "ngram", "suffix", "itself", "another"]


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_tokens_are_those_without_drafts(
    loaded: Loaded,
    prompts: list[list[int]],
    texts: list[list[list[int]]],
    draft_models: dict[str, CausalLM],
    data: st.DataObject,
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
        draft_model=draft_models.get(name),
        max_num_seqs=16,
        max_drafts=data.draw(st.integers(1, 8)),
        pipeline_depth=data.draw(st.integers(1, 3)),
        max_num_batched_tokens=data.draw(st.sampled_from([17, 40, 200])),
        long_prefill_token_threshold=data.draw(st.sampled_from([0, 0, 5])),
        num_blocks=data.draw(st.sampled_from([16, 40, 400])),
        prefix_caching=data.draw(st.booleans()),
    )
    assert engine.generate(rows, NUM_TOKENS, [KINDS[kind] for kind in kinds]) == wanted


def _as_text(tokens: list[int]) -> str:
    return b"".join(TOKENS[token] for token in tokens if token != EOS).decode()


def test_texts_under_the_grammar_are_what_it_asks_for(formed_texts: list[list[list[int]]]) -> None:
    """So that the test below compares something: most are whole objects, and they differ."""
    whole = [_as_text(text) for kind in formed_texts for text in kind if text[-1] == EOS]
    assert len(set(whole)) > 15
    for text in whole:
        assert set(json.loads(text)) == {"name", "tags", "n"}


@pytest.mark.parametrize("num_examples", [5, pytest.param(200, marks=pytest.mark.nightly)])
def test_tokens_under_a_grammar_are_those_without_drafts(
    loaded: Loaded,
    prompts: list[list[int]],
    texts: list[list[list[int]]],
    formed_texts: list[list[list[int]]],
    draft_models: dict[str, CausalLM],
    num_examples: int,
) -> None:
    """Free rows among them; news that reach the grammar late."""

    @settings(max_examples=num_examples, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        _check_formed(loaded, prompts, texts, formed_texts, draft_models, data)

    check()


def _check_formed(
    loaded: Loaded,
    prompts: list[list[int]],
    texts: list[list[list[int]]],
    formed_texts: list[list[list[int]]],
    draft_models: dict[str, CausalLM],
    data: st.DataObject,
) -> None:
    num_rows = data.draw(st.integers(1, 16))
    kinds = [data.draw(st.integers(0, len(FORMED) - 1)) for _ in range(num_rows)]
    is_formed = [data.draw(st.integers(0, 3)) > 0 for _ in range(num_rows)]
    chosen = data.draw(st.permutations(range(len(prompts))))[:num_rows]
    num_tokens = NUM_FORMED if all(is_formed) and num_rows < 4 else NUM_TOKENS // 2
    of_rows = zip(kinds, chosen, is_formed, strict=True)
    wanted = [
        (formed_texts[kind] if formed else texts[FORMED[kind]])[index][:num_tokens] for kind, index, formed in of_rows
    ]
    rows = [prompts[index] for index in chosen]
    engine = ConstrainedEngine(
        loaded.model,
        _proposer(name := data.draw(st.sampled_from(PROPOSERS)), rows, wanted),
        draft_model=draft_models.get(name),
        delay=data.draw(st.sampled_from([0, 0, 1])),
        max_num_seqs=16,
        max_drafts=data.draw(st.integers(1, 8)),
        has_adaptive_drafts=data.draw(st.booleans()),
        pipeline_depth=data.draw(st.integers(1, 3)),
        max_num_batched_tokens=data.draw(st.sampled_from([17, 40, 200])),
        num_blocks=data.draw(st.sampled_from([40, 400])),
        prefix_caching=data.draw(st.booleans()),
    )
    keys = {index: KEY for index, formed in enumerate(is_formed) if formed}
    assert engine.generate(rows, num_tokens, [KINDS[FORMED[kind]] for kind in kinds], keys) == wanted


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_masks_behind_a_draft_are_not_those_behind_the_token_that_came(
    loaded: Loaded, prompts: list[list[int]], formed_texts: list[list[list[int]]], delay: int
) -> None:
    """Each string might end at once, as is guessed, so other tokens are allowed behind the guess than behind what came;
    while the news of that is on its way there are the masks for the guess alone."""
    quote, comma = TOKENS.index(b'"'), TOKENS.index(b",")
    engine = ConstrainedEngine(
        loaded.model,
        StubbornProposer([quote, comma, quote]),
        delay=delay,
        max_num_seqs=16,
        max_drafts=3,
        pipeline_depth=2,
        max_num_batched_tokens=200,
        num_blocks=400,
    )
    wanted = [text[:20] for text in formed_texts[1][:6]]
    assert engine.generate(prompts[:6], 20, [KINDS[FORMED[1]]] * 6, dict.fromkeys(range(6), KEY)) == wanted


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_drafts", [1, 3, 8])
def test_right_drafts_under_a_grammar_are_accepted(
    loaded: Loaded,
    prompts: list[list[int]],
    formed_texts: list[list[list[int]]],
    num_drafts: int,
    depth: int,
) -> None:
    """As below, but for the step behind the prompt, before which nobody could tell what would be guessed."""
    proposer = ScriptedProposer({tuple(prompts[3]): formed_texts[0][3]}, 1.0, VOCAB_SIZE)
    engine = ConstrainedEngine(loaded.model, proposer, max_drafts=num_drafts, pipeline_depth=depth)
    assert engine.generate([prompts[3]], NUM_FORMED, [GREEDY], {0: KEY}) == [formed_texts[0][3]]
    numbers = engine.scheduler.statistics()
    behind_second = NUM_FORMED - 2
    num_steps = -(-behind_second // (1 + num_drafts))
    assert numbers.num_accepted_tokens == numbers.num_draft_tokens == behind_second - num_steps
    assert numbers.num_late_masks == 0


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
