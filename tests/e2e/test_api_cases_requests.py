"""Reported faults of request validation, at all endpoints that take a body: V01, V03, V05, V06, V08, V11, V12."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from callboard.bench.random_model import NUM_BYTE_TOKENS
from callboard.server.completion_request import CompletionFields
from callboard.server.request_fields import SharedFields
from callboard.server.sampling_fields import SamplingFields
from callboard.tests.e2e.api import ENDPOINTS, LETTERS_LENGTH, STREAM, Api, choices_of, usage_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("letters_idle")]

VOCABULARY = NUM_BYTE_TOKENS + 26 * 26
OUT_OF_IT = (VOCABULARY, 99_999_999, 2**31, 2**63, 2**64, 2**70, -1, -(2**63))
WRONG_IDS = (1.5, "1", True, None, [], {}, "x")
LENGTH = LETTERS_LENGTH
JUNK: tuple[Any, ...] = (5, -5, 1.5, 2**70, 1e308, True, "yes", "", "9", [], [5], [[]], [None], {}, {"a": []}, [{}])
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}
FIELDS = {name for fields in (CompletionFields, SharedFields, SamplingFields) for name in fields.__struct_fields__} | {
    "messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice", "response_format", "tokens",
    "continue_final_message", "add_generation_prompt", "chat_template_kwargs", "documents", "chat_template",
    "structured_outputs", "functions", "modalities", "reasoning_effort", "return_token_strs", "user", "metadata",
    "store", "parallel_tool_calls", "logits_processors", "suffix",
}  # fmt: skip


def check_good(letters: Api) -> None:
    for path, body in GOOD.items():
        assert letters.post(path, body).status == 200


# V01: token ids


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_of_ids_that_are_none(letters: Api, stream: bool) -> None:
    """Alone, last of a prompt, last of several prompts: a 400 that names the place and the number."""
    for wrong in (*OUT_OF_IT, *WRONG_IDS):
        prompts: list[Any] = [[wrong], [1, 2, wrong], [[1, 2], [1, wrong]]]
        if wrong in ("1", "x", []):  # a text, or a prompt of ids, is one of several prompts
            prompts = [[1, 2, wrong], [[1, 2], [1, wrong]]]
        for prompt in prompts:
            reply = letters.ask("completions", prompt, max_tokens=1, stream=stream)
            assert reply.status == 400, (prompt, reply.text)
            assert reply.error["param"].startswith("prompt")
            if wrong in OUT_OF_IT and -(2**63) <= wrong < 2**63:
                assert str(wrong) in reply.error["message"]
    for prompt in ([[]], [[1], []], ["a", ""], [""], [[[1]]], [{"a": 1}], [5, [5]]):
        assert letters.ask("completions", prompt, max_tokens=1, stream=stream).error["param"].startswith("prompt")
    check_good(letters)


@pytest.mark.parametrize("field", ["allowed_token_ids", "stop_token_ids", "tokens"])
def test_other_lists_of_ids(letters: Api, field: str) -> None:
    for wrong in (*OUT_OF_IT, *WRONG_IDS):
        replies = (
            [letters.post("/detokenize", {"tokens": [1, wrong]})]
            if field == "tokens"
            else [letters.ask(endpoint, "a", max_tokens=1, **{field: [1, wrong]}) for endpoint in ENDPOINTS]
        )
        for reply in replies:
            assert reply.status == 400, (wrong, reply.text)
            assert reply.error["param"].startswith(field) and field in reply.error["message"]
    for endpoint in ENDPOINTS if field != "tokens" else ():
        assert letters.ask(endpoint, "a", max_tokens=1, **{field: [VOCABULARY - 1, 0]}).status == 200


# V03: logit_bias


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_logit_bias(letters: Api, endpoint: str) -> None:
    """A wrong key is named; a value out of range is the nearest in range, as documented."""
    for key in (str(VOCABULARY), "10000000", "-1", "abc", "", " 5", "+5", "1.0", "1e1", "٣", "5 ", str(2**64)):
        for stream in (False, True):
            reply = letters.ask(endpoint, "a", max_tokens=1, logit_bias={"7": 1, key: -100}, stream=stream)
            assert (reply.status, reply.error["param"]) == (400, "logit_bias"), key
            assert key in reply.error["message"]
    for value in ("x", None, [], True, {}):
        reply = letters.ask(endpoint, "a", max_tokens=1, logit_bias={"7": 1, "5": value})
        assert (reply.status, reply.error["param"]) in ((400, "logit_bias.5"), (400, "logit_bias")), value
        assert "5" in reply.error["message"]
    forced = {"max_tokens": 3, "ignore_eos": True, "return_token_ids": True}
    for value in (100, 101, 1e308):
        (choice,) = letters.choices(endpoint, "a", logit_bias={str(VOCABULARY - 1): value, "5": -value}, **forced)
        assert choice.token_ids == [VOCABULARY - 1] * 3


# V05, V06: every field with everything that it is not


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("values", [JUNK[1::3], pytest.param(JUNK, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_no_value_of_any_field_is_a_500(letters: Api, path: str, values: tuple[Any, ...]) -> None:
    """A refusal names its field; what is taken is served."""
    taken = 0
    for field, value in itertools.product(sorted(FIELDS), values):
        reply = letters.post(path, {**GOOD[path], field: value})
        if reply.status == 200:
            taken += 1
            continue
        assert reply.status in (400, 404) and (reply.status == 400 or field == "model"), (field, value, reply.text)
        error = reply.error
        assert (error["param"] or "").startswith(field) or field in error["message"], (field, value, reply.text)
    assert taken
    check_good(letters)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_response_format_is_named_whatever_is_wrong_in_it(letters: Api, endpoint: str) -> None:
    for value in (
        {"type": "json_schema", "schema": {"type": "object"}},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a"}},
        {"type": "json_schema", "json_schema": 5},
        {"type": "json_schema", "json_schema": {"schema": 5}},
        {"type": "nonsense"},
        {"type": None},
        {"type": 5},
        {"type": []},
    ):
        for stream in (False, True):
            reply = letters.ask(endpoint, "a", max_tokens=1, response_format=value, stream=stream)
            assert reply.status == 400 and reply.error["param"].startswith("response_format"), value


# V08: fields of other clients


def test_what_other_clients_send_is_taken(letters: Api) -> None:
    """null for everything is the default; unknown fields are named in a header, of messages too."""
    extras = {"user": "u", "store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True, "service_tier": "auto"}
    for endpoint in ENDPOINTS:
        nulls: dict[str, Any] = {name: None for name in FIELDS - {"prompt", "messages"}}
        prompt: Any = "a" if endpoint == "completions" else [
            {"role": "user", "content": "x", "name": "bob", "foo": 1},
            {"role": "assistant", "content": "y", "refusal": None, "tool_calls": None, "audio": None},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "developer", "content": ""},
        ]  # fmt: skip
        for stream in (False, True):
            reply = letters.ask(
                endpoint, prompt, **{**nulls, **extras, "max_tokens": 2, "stream": stream, "foo": {"bar": 1}, "": 1}
            )
            assert len(choices_of(reply)) == 1
            named = reply.headers["x-ignored-fields"]
            assert "foo" in named and "user" not in named and "refusal" not in named


# V11: the length


def test_prompt_and_max_tokens_against_the_length(letters: Api) -> None:
    """Of prompts of ids, alone and last of several; with n, streamed; the same limit wherever it is found out."""
    cases = [(LENGTH - 1, 1), (LENGTH - 8, 8), (LENGTH - 8, None), (LENGTH - 1, None)]
    for (num_tokens, max_tokens), stream in itertools.product(cases, ({}, STREAM)):
        fields = {"max_tokens": max_tokens, "ignore_eos": True, **stream}
        reply = letters.ask("completions", [5] * num_tokens, **fields)
        (choice,) = choices_of(reply)
        usage = usage_of(reply)
        assert (usage["completion_tokens"], choice.finish_reason) == (max_tokens or LENGTH - num_tokens, "length")
        assert usage["total_tokens"] <= LENGTH
    nothing = letters.ask("completions", [5] * LENGTH, echo=True, max_tokens=0)
    assert (nothing.status, nothing.error["code"]) == (400, "context_length_exceeded")
    assert letters.ask("completions", [5] * (LENGTH - 1), echo=True, max_tokens=0).status == 200
    wrong = [(LENGTH, 1), (LENGTH + 1, 1), (LENGTH, None), (LENGTH - 8, 9), (5, 2**31), (5, 2**63), (5, 2**70)]
    for num_tokens, max_tokens in wrong:
        for prompt, more in itertools.product(([5] * num_tokens, [[5], [5] * num_tokens]), ({}, {"n": 2}, STREAM)):
            reply = letters.ask("completions", prompt, max_tokens=max_tokens, **more)
            assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
            message = reply.error["message"].replace(",", "")
            assert str(LENGTH) in message and (str(num_tokens) in message or str(max_tokens) in message)


def test_a_chat_against_the_length(letters: Api) -> None:
    """Its length is known after the template and the tokenizer: the same rule, with both of its names of the limit."""
    content = "Q" * (LENGTH - 24)
    num_tokens = usage_of(letters.ask("chat", content, max_tokens=1))["prompt_tokens"]
    room = LENGTH - num_tokens
    for name, stream in itertools.product(("max_tokens", "max_completion_tokens"), ({}, STREAM)):
        reply = letters.ask("chat", content, ignore_eos=True, **{name: room}, **stream)
        assert usage_of(reply)["total_tokens"] == LENGTH
        for too_many in (room + 1, 2**31, 2**70):
            refused = letters.ask("chat", content, **{name: too_many}, **stream)
            assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
            message = refused.error["message"].replace(",", "")
            assert str(LENGTH) in message and str(too_many) in message
    assert usage_of(letters.ask("chat", content, ignore_eos=True))["total_tokens"] == LENGTH
    full = letters.ask("chat", content + "Q" * room)
    assert full.error["code"] == "context_length_exceeded" and str(LENGTH) in full.error["message"].replace(",", "")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_prompt_that_is_truncated_fits(letters: Api, endpoint: str) -> None:
    """-1 leaves room for max_tokens exactly; a number leaves what it leaves."""
    long = "Q" * (2 * LENGTH)
    for kept, max_tokens, expected in ((-1, 8, LENGTH - 8), (-1, None, LENGTH - 1), (LENGTH - 1, 1, LENGTH - 1)):
        usage = usage_of(letters.ask(endpoint, long, truncate_prompt_tokens=kept, max_tokens=max_tokens))
        assert usage["prompt_tokens"] == expected
    refused = letters.ask(endpoint, long, truncate_prompt_tokens=LENGTH - 1, max_tokens=2)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    for kept in (0, -2, LENGTH, 2**70):
        assert letters.ask(endpoint, long, truncate_prompt_tokens=kept).error["param"] == "truncate_prompt_tokens"


# V12: seeds


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_seeds(letters: Api, endpoint: str) -> None:
    """The ends of 64 bits: the same text twice, of every choice, streamed or not; beyond them a 400."""
    body = {"max_tokens": 6, "temperature": 1, "ignore_eos": True, "n": 2}
    texts = []
    for seed in (2**63 - 1, -(2**63), 0, -1):
        whole, streamed = (letters.choices(endpoint, "a", seed=seed, **body, **stream) for stream in ({}, STREAM))
        assert [choice.text for choice in whole] == [choice.text for choice in streamed]
        texts += [choice.text for choice in whole]
    assert len(set(texts)) == len(texts)
    for seed in (2**63, -(2**63) - 1, 2**64, 2**70, 0.5, "1", True, []):
        for stream in (False, True):
            reply = letters.ask(endpoint, "a", seed=seed, max_tokens=1, stream=stream)
            assert (reply.status, reply.error["param"]) == (400, "seed"), seed
