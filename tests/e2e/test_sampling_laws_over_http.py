"""The law of sampled tokens through a whole engine: G-tests against the softmax of transformers' own logits.

`tests/kernels` has the same claims of the sampler alone. Here they are of requests: fields that arrive, choices and
seeds that are spread over a batch, steps that mix requests. An alarm is looked at again with four times the samples.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from callboard.bench.random_model import NUM_BYTE_TOKENS
from callboard.tests.e2e.conftest import Send
from callboard.tests.e2e.family_servers import FamilyServer
from callboard.tests.kernels.sampling_laws import filtered_law, g_test, holds, two_sample_g
from callboard.tests.models.families import make_prompt, oracle_logits

PROMPT = make_prompt(0, 3)
N = 50
"""Choices of a request."""
SINGLE: list[dict[str, Any]] = [
    {name: value}
    for name, values in {
        "temperature": [0.3, 0.7, 1.5],
        "top_k": [1, 2, 5, NUM_BYTE_TOKENS],
        "top_p": [0.1, 0.5, 0.9],
        "min_p": [0.05, 0.5],
    }.items()
    for value in values
]
PAIRS = [a | b for a, b in itertools.combinations(SINGLE, 2) if a.keys() != b.keys()]
CLAIMS: list[dict[str, Any]] = [{}, *SINGLE, *PAIRS]
SEEDS = 3
"""Claims about seeds."""

Ask = Callable[[Sequence[dict[str, Any]]], list[list[list[int]]]]


@pytest.fixture(scope="module")
def ask(gemma3: FamilyServer, send: Send) -> Ask:
    """`ask(bodies)` -> for each request the token ids of its choices; a few requests at a time."""

    def one(body: dict[str, Any]) -> list[list[int]]:
        fields = {"max_tokens": 1, "ignore_eos": True, "return_token_ids": True}
        reply = send(f"{gemma3.server.url}/v1/completions", {**fields, **body})
        assert reply.status == 200, reply.text
        return [choice["token_ids"] for choice in reply.json["choices"]]

    def many(bodies: Sequence[dict[str, Any]]) -> list[list[list[int]]]:
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(one, bodies))

    return many


def law_logits(family: FamilyServer, prompt: Sequence[int]) -> dict[int, float]:
    with torch.inference_mode():
        return dict(enumerate(oracle_logits(family.oracle, prompt)[-1].double().tolist()))


def has_clear_borders(logits: Mapping[int, float], settings: dict[str, Any]) -> bool:
    """No filter's border lies so near a token that rounding decides about it."""
    noise = torch.Generator().manual_seed(0)
    support = [bool(p) for p in filtered_law(logits, **settings).values()]
    for _ in range(3):
        errors = (1e-3 * torch.randn(len(logits), generator=noise)).tolist()
        moved = {token: logit + errors[token] for token, logit in logits.items()}
        if [bool(p) for p in filtered_law(moved, **settings).values()] != support:
            return False
    return True


def check_law(ask: Ask, family: FamilyServer, settings: dict[str, Any]) -> None:
    """First tokens of many choices: none outside the support, the rest as often as the law says."""
    prompts = (make_prompt(seed, 3) for seed in itertools.count())
    prompt = next(prompt for prompt in prompts if has_clear_borders(law_logits(family, prompt), settings))
    logits = law_logits(family, prompt)
    law = filtered_law(logits, **settings)

    def p_value(_: int, num_samples: int) -> float:
        answers = ask([{"prompt": prompt, "n": N, **settings}] * (num_samples // N))
        return g_test(Counter(tokens[0] for choices in answers for tokens in choices), law)

    assert holds(p_value, len(CLAIMS)), settings


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.5, "top_k": 40}], ids=["plain", "filtered"])
def test_5000_samples_have_their_law(ask: Ask, gemma3: FamilyServer, settings: dict[str, Any]) -> None:
    check_law(ask, gemma3, settings)


@pytest.mark.nightly
def test_temperature_and_filters_and_their_pairs(ask: Ask, gemma3: FamilyServer) -> None:
    for settings in CLAIMS:
        check_law(ask, gemma3, settings)


# Exact cases: two tokens, whose log-odds each field moves by what it says


def two_tokens(logits: Mapping[int, float]) -> tuple[int, int, float]:
    """The two likeliest, and the first one's lead."""
    first, second = sorted(logits, key=lambda token: -logits[token])[:2]
    return first, second, logits[first] - logits[second]


@pytest.mark.nightly
def test_two_even_tokens_are_binomial(ask: Ask, gemma3: FamilyServer) -> None:
    a, b, lead = two_tokens(law_logits(gemma3, PROMPT))
    body = {"prompt": PROMPT, "n": N, "logit_bias": {str(b): lead}, "allowed_token_ids": [a, b]}

    def p_value(_: int, num_samples: int) -> float:
        answers = ask([body] * (num_samples // N))
        return g_test(Counter(tokens[0] for choices in answers for tokens in choices), {a: 0.5, b: 0.5})

    assert holds(p_value, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("bias", [-2.0, -0.5, 1.0, 3.0])
def test_bias_multiplies_the_odds(ask: Ask, gemma3: FamilyServer, bias: float) -> None:
    a, b, lead = two_tokens(law_logits(gemma3, PROMPT))
    body = {"prompt": PROMPT, "n": N, "logit_bias": {str(a): bias}}
    counts = Counter(tokens[0] for choices in ask([body] * 400) for tokens in choices)
    error = math.sqrt(1 / counts[a] + 1 / counts[b])
    assert abs(math.log(counts[a] / counts[b]) - lead - bias) < 4 * error


@pytest.mark.nightly
@pytest.mark.parametrize(
    "penalties", [{"frequency_penalty": 0.6}, {"presence_penalty": 1.1}, {"repetition_penalty": 1.4}], ids=str
)
def test_three_tokens_under_a_penalty(ask: Ask, gemma3: FamilyServer, penalties: dict[str, float]) -> None:
    """Two tokens are allowed; the law of all eight answers of three, each step's from transformers."""
    a, b, _ = two_tokens(law_logits(gemma3, PROMPT))
    law: dict[int, float] = {}
    for index, answer in enumerate(itertools.product((a, b), repeat=3)):
        probability = 1.0
        for step in range(3):
            logits, before = law_logits(gemma3, [*PROMPT, *answer[:step]]), answer[:step]
            penalised = {}
            for token in (a, b):
                value, count = logits[token], before.count(token)
                if count or token in PROMPT:
                    factor = penalties.get("repetition_penalty", 1.0)
                    value = value / factor if value > 0 else value * factor
                value -= penalties.get("frequency_penalty", 0.0) * count
                value -= penalties.get("presence_penalty", 0.0) * (count > 0)
                penalised[token] = value
            probability *= filtered_law(penalised)[answer[step]]
        law[index] = probability
    assert sum(law.values()) == pytest.approx(1)
    numbers = {answer: index for index, answer in enumerate(itertools.product((a, b), repeat=3))}
    body = {"prompt": PROMPT, "n": N, "max_tokens": 3, "allowed_token_ids": [a, b], **penalties}

    def p_value(_: int, num_samples: int) -> float:
        answers = ask([body] * (num_samples // N))
        return g_test(Counter(numbers[tuple(tokens)] for choices in answers for tokens in choices), law)  # type: ignore[index]

    assert holds(p_value, 3)


# Seeds


@pytest.mark.nightly
def test_two_thousand_seeds_behave_like_one_source(ask: Ask, gemma3: FamilyServer) -> None:
    law = filtered_law(law_logits(gemma3, PROMPT), temperature=0.7)

    def p_value(first: int, num_samples: int) -> float:
        answers = ask(
            [{"prompt": PROMPT, "seed": seed, "temperature": 0.7} for seed in range(first, first + num_samples)]
        )
        return g_test(Counter(choices[0][0] for choices in answers), law)

    assert holds(p_value, SEEDS, num_samples=2000)


@pytest.mark.nightly
@pytest.mark.parametrize("neighbour", ["seed", "choice"])
def test_neighbours_are_independent(ask: Ask, neighbour: str) -> None:
    """Pairs of tokens of seeds s and s + 1, or of two choices of one seed: as frequent as pairs of strangers."""
    fields = {"prompt": PROMPT, "temperature": 0.5, "top_k": 12}

    def p_value(first: int, num_samples: int) -> float:
        seeds = range(first, first + 2 * num_samples, 2)
        if neighbour == "choice":
            answers = ask([{**fields, "seed": seed, "n": 2} for seed in seeds])
            pairs = [(one[0], other[0]) for one, other in answers]
        else:
            answers = ask([{**fields, "seed": seed} for pair in seeds for seed in (pair, pair + 1)])
            pairs = [(answers[i][0][0], answers[i + 1][0][0]) for i in range(0, len(answers), 2)]
        strangers = [(pairs[i][0], pairs[i - 1][1]) for i in range(len(pairs))]
        return two_sample_g(*(Counter(a * NUM_BYTE_TOKENS + b for a, b in kind) for kind in (pairs, strangers)))

    assert holds(p_value, SEEDS, num_samples=2000)
