"""One prompt, thousands of seeds, drafts for every token that may have one: by either rule of acceptance texts have the
law that transformers computes for the model, and by the coupled one they are those without drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from callboard.execution import torch_sampler
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.models.protocol import CausalLM
from callboard.speculative.acceptance import Rule
from callboard.tests.kernels.rejection_laws import planted
from callboard.tests.kernels.sampling_laws import ALPHA, filtered_law, g_test
from callboard.tests.models.families import Engine, Loaded, load, make_oracle, make_prompt
from callboard.tests.speculative.scripted import PositionalProposer

NUM_SEEDS = 4000
NUM_TOKENS = 3
"""The first comes with the prompt and the last has no room for a draft, unless drafts before it are rejected."""
PROMPT = make_prompt(11, 7)
KINDS: list[dict[str, float]] = [{"top_k": 5}]
KINDS_BY_NIGHT: list[dict[str, float]] = [{}, {"top_p": 0.7}, {"min_p": 0.1}]
Text = tuple[int, ...]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(make_oracle("qwen2"), tmp_path_factory.mktemp("qwen2"))


def law_of(loaded: Loaded, filters: Mapping[str, float], length: int) -> dict[Text, float]:
    """Probability of each text of so many tokens behind the prompt, by transformers' logits."""
    law: dict[Text, float] = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, token): law[text] * probability
            for text, next_law in next_laws(loaded, filters, [text for text in law if law[text]]).items()
            for token, probability in next_law.items()
        }
    return law


def next_laws(loaded: Loaded, filters: Mapping[str, float], texts: list[Text]) -> dict[Text, dict[int, float]]:
    """Of the token that comes behind each."""
    with torch.inference_mode():
        logits = loaded.oracle(torch.tensor([[*PROMPT, *text] for text in texts]), use_cache=False).logits[:, -1]
    rows = logits.double().tolist()
    laws = [filtered_law(dict(enumerate(row)), **filters) for row in rows]  # type: ignore[arg-type]
    return dict(zip(texts, laws, strict=True))


def likeliest(law: Mapping[Text, float]) -> list[int]:
    """Of each place, by itself."""
    sums: list[Counter[int]] = [Counter() for _ in next(iter(law))]
    for text, probability in law.items():
        for place, token in enumerate(text):
            sums[place][token] += probability  # type: ignore[assignment]
    return [place.most_common(1)[0][0] for place in sums]


def generate(
    loaded: Loaded,
    filters: Mapping[str, float],
    guesses: list[int],
    acceptance: Rule,
    depth: int = 2,
    draft_model: CausalLM | None = None,
) -> tuple[list[Text], int]:
    """(texts, one a seed; drafts that were accepted)"""
    engine = Engine(
        loaded.model,
        PositionalProposer(len(PROMPT), guesses),
        acceptance=acceptance,
        draft_model=draft_model,
        max_drafts=len(guesses),
        pipeline_depth=depth,
        max_num_seqs=200,
        max_num_batched_tokens=2000,
        max_queued_requests=NUM_SEEDS,
        num_blocks=1000,
    )
    kinds = [SamplingParams(seed=seed, **{"temperature": 1.0, **filters}) for seed in range(NUM_SEEDS)]  # type: ignore[arg-type]
    texts = engine.generate([PROMPT] * NUM_SEEDS, NUM_TOKENS, kinds)
    return [tuple(text) for text in texts], engine.scheduler.statistics().num_accepted_tokens


def p_value(texts: list[Text], law: Mapping[Text, float]) -> float:
    """Of the tokens that texts begin with, as many as the law has; 0 where it has no probability."""
    length = len(next(iter(law)))
    number = {text: index for index, text in enumerate(law)}
    counts = Counter(number.get(text[:length], -1) for text in texts)
    return g_test(counts, {number[text]: probability for text, probability in law.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
    "filters", [*KINDS, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS_BY_NIGHT)], ids=str
)
def test_texts_have_the_law_of_the_model_by_either_rule(loaded: Loaded, filters: dict[str, float]) -> None:
    law = law_of(loaded, filters, NUM_TOKENS if filters else 2)
    guesses = likeliest(law_of(loaded, filters, 2))
    guesses.append(guesses[-1])
    plain, none_accepted = generate(loaded, filters, [], "coupled")
    assert none_accepted == 0
    coupled, num_coupled = generate(loaded, filters, guesses, "coupled")
    assert coupled == plain
    rejection, num_accepted = generate(loaded, filters, guesses, "rejection")
    assert rejection != plain
    second = marginal(law, 1)
    for texts in (coupled, rejection):
        assert p_value(texts, law) > ALPHA
        assert g_test(Counter(text[1] for text in texts), second) > ALPHA
    # a guess without chance is accepted with the probability that the model gives it, by either rule
    share = second[guesses[1]]
    for num in (num_coupled, num_accepted):
        assert abs(num - share * NUM_SEEDS) < 4 * (NUM_SEEDS * share * (1 - share)) ** 0.5
    assert [text[0] for text in rejection] == [text[0] for text in plain]  # no draft, no difference
    assert generate(loaded, filters, guesses, "rejection", depth=1)[0] == rejection


@pytest.mark.slow
@pytest.mark.parametrize(
    "filters", [{"top_k": 5}, pytest.param({"temperature": 0.7, "top_p": 0.8}, marks=pytest.mark.nightly)], ids=str
)
def test_drafts_that_are_drawn_are_accepted_as_often_as_can_be(
    loaded: Loaded, tmp_path: Path, filters: dict[str, float]
) -> None:
    """By a draft model, whose distribution is another: the share is the sum of min(p, q) behind each first token."""
    oracle = make_oracle("qwen2")
    for parameter in oracle.parameters():
        parameter.add_(0.02 * torch.randn(parameter.shape))
    another = load(oracle, tmp_path)
    law = law_of(loaded, filters, 2)
    firsts = marginal(law, 0)
    p, q = (next_laws(model, filters, [(token,) for token in firsts]) for model in (loaded, another))
    share = sum(
        probability * sum(min(chance, q[token,].get(other, 0.0)) for other, chance in p[token,].items())
        for token, probability in firsts.items()
    )
    assert 0.2 < share < 0.9
    texts, num_accepted = generate(loaded, filters, [0], "rejection", draft_model=another.model)
    assert p_value(texts, law) > ALPHA
    assert abs(num_accepted - share * NUM_SEEDS) < 3 * (NUM_SEEDS * share * (1 - share)) ** 0.5


def marginal(law: Mapping[Text, float], place: int) -> dict[int, float]:
    sums: dict[int, float] = {}
    for text, probability in law.items():
        sums[text[place]] = sums.get(text[place], 0.0) + probability
    return sums


@pytest.mark.slow
def test_a_planted_bug_is_found(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    law = law_of(loaded, {"top_k": 5}, 2)
    module = planted("rest.scatter_(1, drafts[rejected, None], -torch.inf)", "pass")
    monkeypatch.setattr(torch_sampler, "sample_or_verify", module.sample_or_verify)
    texts, _ = generate(loaded, {"top_k": 5}, [*likeliest(law), 9], "rejection")
    assert p_value(texts, law) < ALPHA
