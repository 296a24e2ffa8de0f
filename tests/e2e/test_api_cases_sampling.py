"""Reported faults of sampling and log-probabilities, at both endpoints: M01, M03, M05, M07, M09, M10, V10.

Expected values come from greedy answers, from arithmetic on the model's own log-probabilities, and from the reference
file, which another implementation made.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from callboard.tests.e2e.api import ENDPOINTS, STREAM, Api, at_once, choices_of, usage_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
B = 300
"""A token of the model of letters."""


def logprobs_field(endpoint: str, top: int) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": top} if endpoint == "chat" else {"logprobs": top}


# M01 and M03: what is greedy, and what is refused


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_is_as_good_as_greedy_is(smol: Api, endpoint: str) -> None:
    """Also where the second token is as likely as the first but for a thousandth; each choice of two, streamed."""
    body = {"max_tokens": 6, "ignore_eos": True, **logprobs_field(endpoint, 2)}
    (greedy,) = smol.choices(endpoint, "San Francisco is a", **body)
    gaps = [max(tops.values()) - min(tops.values()) for tops in greedy.top_logprobs if tops]
    assert endpoint == "chat" or min(gaps) < 2e-3
    cases: list[dict[str, Any]] = [
        {"temperature": t, "seed": 7} for t in (1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 1e-38, 1e-45, 5e-324)
    ]
    cases += [{"temperature": 1, "top_p": p} for p in (0, 1e-4, 1e-9, 1e-12, 5e-324)]
    cases += [{"temperature": 100, "top_k": 1}, {"temperature": 100, "min_p": 1}]
    cases += [{"temperature": 1e-6, "top_p": 1e-9, "top_k": 3, "min_p": 0.5, "frequency_penalty": 0, "n": 2, **STREAM}]
    replies = at_once(lambda case: smol.ask(endpoint, "San Francisco is a", **body, **case), cases)
    for case, reply in zip(cases, replies, strict=True):
        for choice in choices_of(reply):
            assert choice.text == greedy.text, case
            assert choice.logprobs == pytest.approx(greedy.logprobs, abs=1e-3)
    processed = {"logprobs_mode": "processed_logprobs", "temperature": 1, "top_p": 1e-9}
    (choice,) = smol.choices(endpoint, "San Francisco is a", **body, **processed)
    assert choice.text == greedy.text and choice.logprobs == pytest.approx([0.0] * 6)
    assert all(math.isfinite(p) for tops in choice.top_logprobs if tops for p in tops.values())


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("stream", [{}, STREAM], ids=["whole", "stream"])
def test_the_borders_of_ranges(letters: Api, endpoint: str, stream: dict[str, Any]) -> None:
    """Inside and at the borders a 200, null is the default, beyond a 400 that names the field."""
    allowed: dict[str, list[Any]] = {
        "temperature": [0, 5e-324, 2, 100],
        "top_p": [0, 1e-9, 1],
        "min_p": [0, 1],
        "top_k": [-1, 0, 1, 2**31 - 1],
        "presence_penalty": [-2, 0, 2],
        "frequency_penalty": [-2, 0, 2],
        "repetition_penalty": [0.01, 1, 100],
        "min_tokens": [0, 2],
        "n": [1, 16],
    }
    refused: dict[str, list[Any]] = {
        "temperature": [-0.1, -5e-324, 100.1, 1e308],
        "top_p": [1.0000001, -0.1, -1e-12],
        "min_p": [1.1, -0.1, 1.0000001],
        "top_k": [-2, 2**31, 0.5],
        "presence_penalty": [-2.1, 2.1],
        "frequency_penalty": [-2.1, 2.1],
        "repetition_penalty": [0, -1, 101],
        "min_tokens": [-1, 3],
        "n": [0, -1, 129],
    }
    body = {"temperature": 1, "seed": 3, "max_tokens": 2, **stream}
    default = [choice.text for choice in letters.choices(endpoint, "a", **body)]
    for name, values in allowed.items():
        for value in values:
            assert letters.ask(endpoint, "a", **{**body, name: value}).status == 200, (name, value)
        assert [choice.text for choice in letters.choices(endpoint, "a", **{**body, name: None})] == default
        for value in refused[name]:
            reply = letters.ask(endpoint, "a", **{**body, name: value})
            assert (reply.status, reply.error["param"]) == (400, name), value


# M05: min_tokens


@pytest.mark.parametrize(
    ("endpoint", "stream"),
    [
        ("completions", {}),
        ("chat", STREAM),
        pytest.param("completions", STREAM, marks=pytest.mark.nightly),
        pytest.param("chat", {}, marks=pytest.mark.nightly),
    ],
)
def test_nothing_ends_an_answer_before_min_tokens(letters: Api, endpoint: str, stream: dict[str, Any]) -> None:
    """Stop strings and stop tokens that come early do not count, later ones do; a token that always comes ends each
    choice at the first moment at which it may."""
    body = {"max_tokens": 30, "ignore_eos": True, "return_token_ids": True, "n": 2, **stream}
    free = letters.choices(endpoint, "a", **body)[0]
    early = free.text[5:8]
    for num in (0, 1, 10, 25, 30):
        for choice in letters.choices(endpoint, "a", min_tokens=num, stop=[early], **body):
            assert len(choice.token_ids) >= num
            if num > 8 and free.text.count(early) == 1:
                assert (choice.text, choice.finish_reason) == (free.text, "length")
        for choice in letters.choices(endpoint, "a", min_tokens=num, stop_token_ids=[free.token_ids[3]], **body):
            assert len(choice.token_ids) >= num and free.token_ids[3] not in choice.token_ids[:num]
        for always in (
            {"ignore_eos": False, "logit_bias": {"0": 100}},
            {"stop_token_ids": [B], "logit_bias": {B: 100}},
        ):
            reply = letters.ask(endpoint, "a", **{**body, "min_tokens": num, **always})
            for choice in choices_of(reply):
                made = len(choice.token_ids)
                assert (choice.finish_reason, made) == (("stop", num + 1) if num < 30 else ("length", 30))
            assert usage_of(reply)["completion_tokens"] == 2 * min(num + 1, 30)
    refused = letters.ask(endpoint, "a", **{**body, "min_tokens": 31})
    assert (refused.status, refused.error["param"]) == (400, "min_tokens")


# M07: penalties


def processed(api: Api, endpoint: str, prompt: str, num_tokens: int, **fields: Any) -> list[dict[str, float]]:
    """By position: processed log-probabilities of the 20 most likely tokens. `b` is always chosen."""
    body = {"max_tokens": num_tokens, "ignore_eos": True, "temperature": 1, "seed": 1, "return_token_ids": True}
    (choice,) = api.choices(
        endpoint, prompt, **body, **logprobs_field(endpoint, 20), logprobs_mode="processed_logprobs", **fields
    )
    return [tops for tops in choice.top_logprobs if tops]


@pytest.mark.parametrize("endpoint", ["completions", pytest.param("chat", marks=pytest.mark.nightly)])
def test_penalties_are_of_the_right_tokens_by_the_right_amount(smol: Api, endpoint: str) -> None:
    """Bias keeps five tokens together at the top, so that all their log-odds can be seen; the output is one of them."""
    prompt = "a a a a a a a a"
    count = smol.post("/tokenize", {"prompt": "a b c d e", "add_special_tokens": False}).json
    ids = count["tokens"]
    assert len(ids) == 5
    names = [smol.post("/detokenize", {"tokens": [i]}).json["prompt"] for i in ids]
    bias = {str(i): 60 for i in ids} | {str(ids[1]): 100}
    base = processed(smol, endpoint, prompt, 6, logit_bias=bias)
    assert all(max(tops, key=lambda name: tops[name]) == names[1] for tops in base)

    def odds(tops: dict[str, float], name: str) -> float:
        return tops[name] - tops[names[3]]

    for fields, per_token, once in (
        ({"frequency_penalty": 2}, 2.0, 0.0),
        ({"presence_penalty": 2}, 0.0, 2.0),
        ({"frequency_penalty": -1.5, "presence_penalty": 0.5}, -1.5, 0.5),
    ):
        changed = processed(smol, endpoint, prompt, 6, logit_bias=bias, **fields)
        for position, (before, after) in enumerate(zip(base, changed, strict=True)):
            for name in (names[0], names[2], names[4]):  # the prompt's token is not penalised
                assert odds(after, name) == pytest.approx(odds(before, name), abs=2e-3), (fields, position)
            fall = position * per_token + (once if position else 0.0)
            assert odds(before, names[1]) - odds(after, names[1]) == pytest.approx(fall, abs=2e-3), (fields, position)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_repetition_penalty_never_makes_a_token_of_the_prompt_likelier(smol: Api, sign: int) -> None:
    """Whichever sign its logit has: divided or multiplied, so less likely; a penalty under 1 the other way."""
    ids = smol.post("/tokenize", {"prompt": " a b c d", "add_special_tokens": False}).json["tokens"]
    names = [smol.post("/detokenize", {"tokens": [i]}).json["prompt"] for i in ids]
    bias = {str(i): sign * 50 for i in ids}
    fields = {"logit_bias": bias, "allowed_token_ids": ids}
    (plain,) = processed(smol, "completions", "a" + " a" * 7, 1, **fields)
    for penalty in (2, 0.5):
        (changed,) = processed(smol, "completions", "a" + " a" * 7, 1, repetition_penalty=penalty, **fields)
        moved = (changed[names[0]] - changed[names[1]]) - (plain[names[0]] - plain[names[1]])
        assert moved * (1 if penalty < 1 else -1) > 5
        assert changed[names[1]] - changed[names[2]] == pytest.approx(plain[names[1]] - plain[names[2]], abs=2e-3)


# M09: names and bytes of tokens


@pytest.mark.parametrize("stream", [{}, STREAM], ids=["whole", "stream"])
def test_bytes_of_tokens_are_those_of_the_text(smol: Api, stream: dict[str, Any]) -> None:
    """Characters of several tokens, in chat, with alternatives; none is written in the tokenizer's own alphabet."""
    ids = smol.post("/tokenize", {"prompt": "日本語😀é", "add_special_tokens": False}).json["tokens"]
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 10, "ignore_eos": True, "allowed_token_ids": ids}
    for choice in smol.choices(
        "chat", "日本語😀é", n=2, temperature=1, seed=5, frequency_penalty=2, **fields, **stream
    ):
        joined = b"".join(map(bytes, choice.token_bytes))
        assert joined.decode(errors="replace") == choice.text
        for name, raw in zip(choice.tokens, choice.token_bytes, strict=True):
            assert name and raw and not set(name) & set("ĠæĹ¥ðŁ")
        for tops in choice.top_logprobs:
            assert tops and all(tops)
    assert usage_of(smol.ask("chat", "日本語😀é", **fields))["completion_tokens"] == 10


# M10: which log-probabilities are given


@pytest.mark.parametrize("stream", [{}, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("n", [1, 2])
def test_numbers_of_alternatives(letters: Api, stream: dict[str, Any], n: int) -> None:
    body = {"max_tokens": 3, "ignore_eos": True, "n": n, "return_tokens_as_token_ids": True, **stream}
    for fields, expected in (
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ):
        for choice in letters.choices("chat", "a", **body, **fields):
            assert [len(tops or {}) for tops in choice.top_logprobs] == [expected] * 3
    for fields in ({"top_logprobs": 2}, {"logprobs": False, "top_logprobs": 2}):
        refused = letters.ask("chat", "a", **body, **fields)
        assert (refused.status, refused.error["param"]) == (400, "top_logprobs"), fields
    for fields in ({}, {"logprobs": None}, {"logprobs": False}):
        assert all(choice.logprobs == [] for choice in letters.choices("chat", "a", **body, **fields))
    for k in (0, 1, 20):
        for choice in letters.choices("completions", "a", **body, logprobs=k):
            assert len(choice.logprobs) == 3
            assert all(max(1, k) <= len(tops or ()) <= k + 1 for tops in choice.top_logprobs)
    for k in (21, -1, True, "1"):
        assert letters.ask("completions", "a", **body, logprobs=k).error["param"] == "logprobs"


# V10: log-likelihoods


def test_the_log_likelihood_of_a_text_is_the_references(smol: Api) -> None:
    """echo with max_tokens 0 over the reference's own answer, cold and from the cache, alone and as one of several."""
    lines = (ROOT / "tests" / "data" / "smollm2_reference.jsonl").read_text().splitlines()
    found = [r for r in map(json.loads, lines) if r["prompt_len"] < 50][:3]
    prompts = [r["prompt_ids"] + r["output_ids"][:8] for r in found]
    expected = []
    for r in found:
        tops = [{token: logprob for token, logprob, _ in position} for position in r["top5_first8"]]
        expected.append([tops[i][token] for i, token in enumerate(r["output_ids"][:8])])
    body = {"echo": True, "logprobs": 3}
    for max_tokens, stream in itertools.product((0, 1), ({}, STREAM)):
        reply = smol.ask("completions", prompts, max_tokens=max_tokens, **body, **stream)
        for prompt, right, choice in zip(prompts, expected, choices_of(reply), strict=True):
            assert len(choice.logprobs) == len(choice.tokens) == len(prompt) + max_tokens
            assert choice.logprobs[0] is None and choice.top_logprobs[0] is None
            assert all(p is not None and p <= 0 and math.isfinite(p) for p in choice.logprobs[1:])
            assert choice.logprobs[len(prompt) - 8 : len(prompt)] == pytest.approx(right, abs=1e-2)
        assert usage_of(reply)["completion_tokens"] == max_tokens * len(prompts)
    text = "The quick brown fox"
    for max_tokens in (0, 1):
        (choice,) = smol.choices("completions", text, max_tokens=max_tokens, **body)
        assert choice.text.startswith(text) and (max_tokens or choice.text == text)
