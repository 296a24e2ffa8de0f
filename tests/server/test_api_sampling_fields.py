"""Every sampling field arrives at the engine with the value that was meant, the same on both endpoints."""

from __future__ import annotations

import json

import pytest
from fake_frontend import MAX_MODEL_LEN, MODEL, VOCAB_SIZE
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import InvalidRequest
from callboard.mailbox.messages.sampling import RepetitionDetection, SamplingParams
from callboard.server.chat_request import parse_chat_request
from callboard.server.completion_request import parse_completion_request
from callboard.server.request_body import parse_body
from callboard.server.served_model import ServedModel
from callboard.topology.boards import MAX_SAMPLING_ENTRIES

SERVED = ServedModel(MODEL, MAX_MODEL_LEN, VOCAB_SIZE)
ENDPOINTS = ["chat", "completion"]


def parse(endpoint, model=SERVED, /, **fields):
    if endpoint == "chat":
        body = {"messages": [{"role": "user", "content": "x"}], **fields}
        return parse_chat_request(parse_body(json.dumps(body).encode()), model)
    return parse_completion_request(parse_body(json.dumps({"prompt": "a", **fields}).encode()), model)


def sampling(endpoint, model=SERVED, /, **fields):
    return parse(endpoint, model, **{"seed": 1, **fields}).sampling


def refusal(endpoint, model=SERVED, /, **fields):
    with pytest.raises(InvalidRequest) as caught:
        parse(endpoint, model, **fields)
    return caught.value


CASES = [
    ({"presence_penalty": -2}, {"presence_penalty": -2.0}),
    ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
    ({"repetition_penalty": 1.25}, {"repetition_penalty": 1.25}),
    ({"logit_bias": {"0": 1, "99": -2.5}}, {"logit_bias": ((0, 1.0), (99, -2.5))}),
    ({"logit_bias": {"5": 101, "6": -1e9}}, {"logit_bias": ((5, 100.0), (6, -100.0))}),
    ({"logit_bias": {"5": 1, "05": 2}}, {"logit_bias": ((5, 2.0),)}),
    ({"allowed_token_ids": [4, 99, 4]}, {"allowed_token_ids": (4, 99)}),
    ({"bad_words": ["a", "b c", "a"]}, {"bad_words": ("a", "b c")}),
    ({"min_tokens": 3, "max_tokens": 3}, {"min_tokens": 3, "max_tokens": 3}),
    ({"min_tokens": MAX_MODEL_LEN - 1}, {"min_tokens": MAX_MODEL_LEN - 1}),
    ({"stop_token_ids": [1, 0, 1]}, {"stop_token_ids": (1, 0)}),
    ({"include_stop_str_in_output": True, "stop": "x"}, {"include_stop_str_in_output": True, "stop": ("x",)}),
    ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
    ({"stop": []}, {}),
    ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ({"prompt_logprobs": 0}, {"prompt_logprobs": 0}),
    ({"prompt_logprobs": 20}, {"prompt_logprobs": 20}),
    ({"logprobs_mode": "processed_logprobs"}, {"processed_logprobs": True}),
    ({"logprobs_mode": "raw_logprobs"}, {}),
    ({"repetition_detection": {"max_pattern_size": 8}}, {"repetition_detection": RepetitionDetection(8, 1, 2)}),
    (
        {"repetition_detection": {"max_pattern_size": 8, "min_pattern_size": 3, "min_count": 4}},
        {"repetition_detection": RepetitionDetection(8, 3, 4)},
    ),
    ({"repetition_detection": {"max_pattern_size": 0, "min_pattern_size": 0}}, {}),
    ({"top_p": 0}, {"temperature": 0.0}),
    ({"top_p": 0, "temperature": 1.5}, {"temperature": 0.0}),
    ({"top_p": 1e-9}, {"top_p": 1e-9}),
    ({"temperature": 5e-324, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
    ({"temperature": 0.001}, {"temperature": 0.0}),
    ({"temperature": 0.002}, {"temperature": 0.002}),
    ({"min_p": 1}, {"min_p": 1.0}),
    ({"seed": -1}, {"seed": 2**64 - 1}),
    ({"use_beam_search": False, "length_penalty": 1, "n": 3, "best_of": 3}, {}),
    ({"spaces_between_special_tokens": False, "best_of": 1, "n": 2}, {}),
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("fields", "expected"), CASES)
def test_what_the_engine_gets(endpoint, fields, expected):
    assert sampling(endpoint, **fields) == SamplingParams(**{"seed": 1, **expected})


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_null_is_the_default(endpoint):
    names = {name for fields, _ in CASES for name in fields} - {"seed"}
    assert sampling(endpoint, **dict.fromkeys(names)) == SamplingParams(seed=1)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_topology_says_which_log_probabilities_are_meant(endpoint):
    processed = ServedModel(MODEL, MAX_MODEL_LEN, VOCAB_SIZE, processes_logprobs=True)
    assert sampling(endpoint, processed).processed_logprobs
    assert not sampling(endpoint, processed, logprobs_mode="raw_logprobs").processed_logprobs


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_priorities_need_the_policy(endpoint):
    assert parse(endpoint, priority=0).priority == 0
    error = refusal(endpoint, priority=-3)
    assert error.param == "priority"
    assert "scheduler.policy" in error.message
    with_policy = ServedModel(MODEL, MAX_MODEL_LEN, VOCAB_SIZE, has_priorities=True)
    assert [parse(endpoint, with_policy, priority=priority).priority for priority in (-3, 0, 7)] == [-3, 0, 7]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_keys_of_logit_bias_are_named(endpoint):
    error = refusal(endpoint, logit_bias={"abc": 1, "5": 1, "1.5": 2, "": 3, "६": 1})
    assert error.param == "logit_bias"
    assert all(name in error.message for name in ("'abc'", "'1.5'", "''", "'६'"))
    assert "'5'" not in error.message
    many = refusal(endpoint, logit_bias={f"key{index}" * 100: 1 for index in range(1000)}).message
    assert len(many) < 2000
    assert "980 more" in many
    for token_id in (VOCAB_SIZE, 10_000_000, -1):
        message = refusal(endpoint, logit_bias={"5": 1, str(token_id): -100}).message
        assert str(token_id) in message
        assert f"vocabulary size {VOCAB_SIZE}" in message
    error = refusal(endpoint, logit_bias={"5": "x"})
    assert error.param == "logit_bias.5"
    assert "logit_bias.5" in error.message


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_all_lists_together_have_a_limit(endpoint):
    """The bound is what a step's plan has room for; the message says how much each list has."""
    model = ServedModel(MODEL, MAX_MODEL_LEN, 2 * MAX_SAMPLING_ENTRIES)
    half = list(range(MAX_SAMPLING_ENTRIES // 2))
    fitting = {"allowed_token_ids": half, "stop_token_ids": half}
    assert sampling(endpoint, model, **fitting).num_entries == MAX_SAMPLING_ENTRIES
    for more in ({"logit_bias": {"1": 1}}, {"bad_words": ["x"]}):
        error = refusal(endpoint, model, **fitting, **more)
        assert error.param == "allowed_token_ids"
        assert f"{MAX_SAMPLING_ENTRIES:,}" in error.message
        assert next(iter(more)) in error.message
    assert len(sampling(endpoint, model, bad_words=[str(i) for i in range(2048)]).bad_words) == 2048
    assert refusal(endpoint, model, bad_words=[str(i) for i in range(2049)]).param == "bad_words"
    assert refusal(endpoint, model, allowed_token_ids=list(range(4097))).param == "allowed_token_ids"
    assert len(sampling(endpoint, model, logit_bias={str(i): 1 for i in range(4096)}).logit_bias) == 4096


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_more_tokens_wanted_than_allowed(endpoint):
    for fields in ({"min_tokens": 4, "max_tokens": 3}, {"min_tokens": MAX_MODEL_LEN}):
        error = refusal(endpoint, **fields)
        assert error.param == "min_tokens"
        assert str(fields["min_tokens"]) in error.message


def test_chat_log_probabilities():
    """`logprobs` alone is enough (M10)."""
    assert sampling("chat", logprobs=True).logprobs == 0
    assert sampling("chat", logprobs=True, top_logprobs=0).logprobs == 0
    assert sampling("chat", logprobs=True, top_logprobs=20).logprobs == 20
    assert sampling("chat", logprobs=False).logprobs is None
    for fields in ({"top_logprobs": 2}, {"logprobs": False, "top_logprobs": 2}):
        assert refusal("chat", **fields).param == "top_logprobs"
    assert refusal("chat", logprobs=True, top_logprobs=21).param == "top_logprobs"


def test_completion_log_probabilities():
    for value in (None, 0, 20):
        assert sampling("completion", logprobs=value).logprobs == value
    assert refusal("completion", logprobs=21).param == "logprobs"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_options_of_the_prompt(endpoint):
    options = parse(endpoint).prompt_options
    assert (options.add_special_tokens, options.truncate_prompt_tokens) == (None, None)
    for value in (True, False):
        assert parse(endpoint, add_special_tokens=value).prompt_options.add_special_tokens is value
    for value in (-1, 1, MAX_MODEL_LEN - 1):
        assert parse(endpoint, truncate_prompt_tokens=value).prompt_options.truncate_prompt_tokens == value


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_copies_of_a_prompts_log_probabilities_are_bounded(endpoint):
    for n, num_top in [(128, 0), (64, 1), (6, 20)]:
        assert sampling(endpoint, n=n, prompt_logprobs=num_top).prompt_logprobs == num_top
        for more in ({"n": n + 1} if n < 128 else {}, {"prompt_logprobs": num_top + 1} if num_top < 20 else {}):
            if more:
                error = refusal(endpoint, **{"n": n, "prompt_logprobs": num_top, **more})
                assert error.param == "prompt_logprobs"
    assert refusal("completion", n=128, echo=True, logprobs=1).param == "prompt_logprobs"
    assert sampling("completion", n=128, logprobs=20).prompt_logprobs is None


def test_a_prompt_that_is_truncated_may_be_long():
    prompt = [1] * (2 * MAX_MODEL_LEN)
    assert refusal("completion", prompt=prompt).code == "context_length_exceeded"
    for truncate in (-1, 8, MAX_MODEL_LEN - 4):
        request = parse("completion", prompt=prompt, truncate_prompt_tokens=truncate, max_tokens=4)
        assert request.prompts[0].token_ids == prompt
    error = refusal("completion", prompt=prompt, truncate_prompt_tokens=MAX_MODEL_LEN - 4, max_tokens=5)
    assert error.param == "max_tokens"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_no_tokens_at_all(endpoint):
    assert refusal(endpoint, max_tokens=0).param == "max_tokens"
    assert refusal("chat", max_completion_tokens=0, max_tokens=5).param == "max_completion_tokens"
    assert refusal("chat", max_tokens=0, echo=True).param == "max_tokens"


token_ids = st.integers(0, VOCAB_SIZE - 1)
any_fields = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.01, 100),
        "logit_bias": st.dictionaries(token_ids.map(str), st.floats(-100, 100), max_size=5),
        "allowed_token_ids": st.lists(token_ids, min_size=1, max_size=5),
        "stop_token_ids": st.lists(token_ids, max_size=5),
        "bad_words": st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), max_size=3),
        "top_p": st.floats(0, 1),
        "min_tokens": st.integers(0, 9),
        "max_tokens": st.integers(9, 20),
        "prompt_logprobs": st.integers(0, 20),
        "skip_special_tokens": st.booleans(),
    },
)


@settings(max_examples=100, deadline=None, database=None)
@given(any_fields)
def test_both_endpoints_mean_the_same(fields):
    fields["seed"] = 5
    chat, completion = (sampling(endpoint, **fields) for endpoint in ENDPOINTS)
    assert chat == completion
    assert dict(chat.logit_bias) == {int(key): bias for key, bias in fields.get("logit_bias", {}).items()}
    assert set(chat.stop_token_ids) == set(fields.get("stop_token_ids", []))
    assert set(chat.allowed_token_ids) == set(fields.get("allowed_token_ids", []))
