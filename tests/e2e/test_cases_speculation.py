"""Drafts change the speed alone: cases D01, D03 and D05 over HTTP, with a real model in float32."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.api import SMOL_LENGTH, STREAM, Api, Choice, Reply, at_once, choices_of, usage_of

NUM_TOKENS = 40
NEAR_TIE = 1e-4
"""Of the two likeliest tokens' log-probabilities: sums of other shapes may round to another order."""
PROMPTS = [
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    '[{"id": 1, "name": "ant"}, {"id": 2, "name": "bee"}, {"id": 3, "name": "cat"}, {"id": 4, "name":',
    "one two three four five six\none two three four five six\none two three four five six\none two",
    "- apples, 2 kg\n- pears, 3 kg\n- plums, 4 kg\n- apples, 2 kg\n- pears, 3 kg\n",
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>\n<tool_call>{"name": "get_',
    "To be, or not to be, that is the question. To be, or not to be, that is the",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "x = 1\nx = 2\nx = 3\nx = 4\nx =",
]
SETTINGS = {"fixed 3": ("max_tokens=3", "adaptive=false"), "adaptive 8": ("max_tokens=8", "adaptive=true")}
NAMES = ("num_draft_tokens", "num_accepted_tokens", "num_drafts")


@pytest.fixture(scope="module", params=[pytest.param("fixed 3", marks=pytest.mark.nightly), "adaptive 8"])
def drafting(request: pytest.FixtureRequest, smollm2_gguf: Path, send: Callable[..., Reply]) -> Iterator[Api]:
    """SmolLM2 as `smol` has it, with prompt lookup."""
    settings = [
        "model.served_name=smol",
        f"model.max_model_len={SMOL_LENGTH}",
        *(f"speculative.{setting}" for setting in SETTINGS[request.param]),
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    with ServerProcess(str(smollm2_gguf), "--dtype", "float32", "--speculative", "ngram", *words) as server:
        yield Api(server, send)
        assert "Traceback" not in server.log(), server.log()[-4_000:]


def _drafts(api: Api) -> dict[str, float]:
    return {name: api.counter(f"spec_decode_{name}_total") for name in NAMES}


def _check_same(plain: Choice, drafted: Choice) -> None:
    """The same tokens, up to a near tie of the first that differs."""
    for index, (one, other) in enumerate(zip(plain.token_ids, drafted.token_ids, strict=False)):
        if one != other:
            top = plain.top_logprobs[index]
            assert top is not None
            likeliest = sorted(top.values(), reverse=True)
            assert likeliest[0] - likeliest[1] < NEAR_TIE, f"token {index}: {one} without, {other} with drafts"
            return
    assert (len(plain.token_ids), plain.finish_reason) == (len(drafted.token_ids), drafted.finish_reason)


def test_tokens_and_log_probabilities_are_those_without_drafts(smol: Api, drafting: Api) -> None:
    fields = {"max_tokens": NUM_TOKENS, "logprobs": 3, "return_token_ids": True}
    before = _drafts(drafting)
    plain = at_once(lambda prompt: smol.choices("completions", prompt, **fields)[0], PROMPTS)
    together = at_once(lambda prompt: drafting.choices("completions", prompt, **fields)[0], PROMPTS)
    alone = [drafting.choices("completions", prompt, **fields, **STREAM)[0] for prompt in PROMPTS[:3]]
    counts = {name: value - before[name] for name, value in _drafts(drafting).items()}
    assert 0 < counts["num_accepted_tokens"] <= counts["num_draft_tokens"]
    for one, other in [*zip(plain, together, strict=True), *zip(plain, alone, strict=False)]:
        _check_same(one, other)
        assert len(other.logprobs) == len(other.token_ids) == len(other.top_logprobs)
        if one.token_ids == other.token_ids:
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-2)
        assert any(logprob for logprob in other.logprobs)


@pytest.mark.parametrize("fields", [{"temperature": 0.8, "seed": 7}, {"temperature": 0, "repetition_penalty": 1.2}])
def test_seeded_and_penalized_answers_are_those_without_drafts(
    smol: Api, drafting: Api, fields: dict[str, object]
) -> None:
    wanted = {"max_tokens": NUM_TOKENS, "logprobs": 2, "return_token_ids": True, **fields}
    for prompt in PROMPTS[:3]:
        (plain,), (drafted,) = (api.choices("completions", prompt, **wanted) for api in (smol, drafting))
        assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 8, 9])
def test_no_more_tokens_than_were_asked_for(drafting: Api, max_tokens: int) -> None:
    before, generated = _drafts(drafting), drafting.counter("generation_tokens_total")
    replies = [drafting.ask("completions", prompt, max_tokens=max_tokens, return_token_ids=True) for prompt in PROMPTS]
    counts = {name: value - before[name] for name, value in _drafts(drafting).items()}
    usages = [usage_of(reply) for reply in replies]
    for reply, usage in zip(replies, usages, strict=True):
        (choice,) = choices_of(reply)
        assert len(choice.token_ids) == usage["completion_tokens"] <= max_tokens
    assert (
        sum(usage["completion_tokens"] for usage in usages) == drafting.counter("generation_tokens_total") - generated
    )
    details = [usage.get("completion_tokens_details", {}) for usage in usages]
    accepted = sum(detail.get("accepted_prediction_tokens", 0) for detail in details)
    rejected = sum(detail.get("rejected_prediction_tokens", 0) for detail in details)
    assert (accepted, accepted + rejected) == (counts["num_accepted_tokens"], counts["num_draft_tokens"])
    assert accepted <= sum(usage["completion_tokens"] for usage in usages)
    if max_tokens < 3:
        assert counts["num_draft_tokens"] == 0, "behind a draft there is room for one token more"


def test_a_stop_in_the_middle_of_drafts_ends_the_text_there(smol: Api, drafting: Api) -> None:
    """A stop string, and a stop token, among tokens that are guessed."""
    (free,) = drafting.choices("completions", PROMPTS[2], max_tokens=NUM_TOKENS, return_token_ids=True)
    stop_id = free.token_ids[5]
    for fields in ({"stop": ["four", "\n\n"]}, {"stop_token_ids": [stop_id]}):
        wanted = {"max_tokens": NUM_TOKENS, "return_token_ids": True, **fields}
        replies = [api.ask("completions", PROMPTS[2], **wanted) for api in (smol, drafting)]
        (plain,), (drafted,) = (choices_of(reply) for reply in replies)
        assert (drafted.text, drafted.token_ids) == (plain.text, plain.token_ids)
        assert (drafted.finish_reason, drafted.stop_reason) == ("stop", plain.stop_reason)
        assert usage_of(replies[1])["completion_tokens"] == usage_of(replies[0])["completion_tokens"]


def test_an_answer_with_a_form_beside_drafted_ones(smol: Api, drafting: Api) -> None:
    """It is drafted for, too, and is what it is without."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "legs": {"type": "integer", "maximum": 99}},
        "required": ["name", "legs"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}}

    def ask(api: Api, prompt: str) -> str:
        if prompt != "form":
            return api.text("completions", prompt, max_tokens=NUM_TOKENS)
        return api.text("chat", "Name an animal.", max_tokens=60, response_format=form)

    drafted = at_once(lambda prompt: ask(drafting, prompt), ["form", *PROMPTS[:3]])
    assert drafted[0] == ask(smol, "form") and set(json.loads(drafted[0])) == {"name", "legs"}


def test_accepted_drafts_are_told_by_their_place(drafting: Api) -> None:
    drafting.text("completions", PROMPTS[2], max_tokens=NUM_TOKENS)
    lines = [
        line.rsplit(" ", 1)
        for line in drafting.get("/metrics").text.splitlines()
        if line.startswith("callboard:spec_decode_num_accepted_tokens_per_pos_total{")
    ]
    values = [float(value) for _, value in lines]
    assert [name.split('"')[1] for name, _ in lines] == [str(place) for place in range(16)]
    assert values == sorted(values, reverse=True) and sum(values) == _drafts(drafting)["num_accepted_tokens"] > 0
