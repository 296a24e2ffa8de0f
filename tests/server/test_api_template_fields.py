"""Chat: what goes to the chat template beside the messages, and how an answer opens or goes on."""

from __future__ import annotations

import json

import pytest
from fake_frontend import MAX_MODEL_LEN, MODEL, VOCAB_SIZE, delta, events_of, finish

from callboard.errors import InvalidRequest
from callboard.server.chat_request import parse_chat_request
from callboard.server.request_body import parse_body
from callboard.server.served_model import ServedModel

SERVED = ServedModel(MODEL, MAX_MODEL_LEN, VOCAB_SIZE)
USER = {"role": "user", "content": "Say it"}
BEGUN = {"role": "assistant", "content": "It is "}


def parse(*messages, **fields):
    body = {"messages": list(messages or [USER]), **fields}
    return parse_chat_request(parse_body(json.dumps(body).encode()), SERVED)


def refusal(*messages, **fields):
    with pytest.raises(InvalidRequest) as caught:
        parse(*messages, **fields)
    return caught.value


def test_how_an_answer_opens():
    for fields, opens in [
        ({}, True),
        ({"add_generation_prompt": True}, True),
        ({"add_generation_prompt": False}, False),
    ]:
        options = parse(**fields).prompt_options
        assert (options.add_generation_prompt, options.continue_final_message) == (opens, False)
    for fields in ({}, {"add_generation_prompt": False}, {"add_generation_prompt": None}):
        options = parse(USER, BEGUN, continue_final_message=True, **fields).prompt_options
        assert (options.add_generation_prompt, options.continue_final_message) == (False, True)
    error = refusal(USER, BEGUN, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"
    for last in ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}):
        assert refusal(USER, last, continue_final_message=True).param == "continue_final_message"


def test_variables_of_the_template():
    assert parse().prompt_options.template_kwargs == b""
    assert parse(chat_template_kwargs={}, documents=[]).prompt_options.template_kwargs == b""
    assert parse(chat_template_kwargs=None, documents=None).prompt_options.template_kwargs == b""
    kwargs = {"enable_thinking": False, "depth": {"a": [1, 2.5, None, "ü"]}, "big": 2**70}
    documents = [{"title": "t", "text": "x"}, {}]
    given = json.loads(parse(chat_template_kwargs=kwargs).prompt_options.template_kwargs)
    assert given == kwargs
    given = json.loads(parse(chat_template_kwargs=kwargs, documents=documents).prompt_options.template_kwargs)
    assert given == {**kwargs, "documents": documents}
    assert json.loads(parse(documents=documents).prompt_options.template_kwargs) == {"documents": documents}


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "chat_template", "tokenize", "documents"]
)
def test_variables_that_other_fields_decide(name):
    error = refusal(chat_template_kwargs={"x": 1, name: 1})
    assert error.param == f"chat_template_kwargs.{name}"
    assert name in error.message


@pytest.mark.parametrize("value", [b"[" * 3000 + b"]" * 3000, b'"\\ud800"', b"1" * 5000, b"1e400"])
@pytest.mark.parametrize("place", [b'"chat_template_kwargs": {"a": %s}', b'"documents": [{"a": %s}]'])
def test_what_no_template_can_be_given(place, value):
    """Nothing that the process of the templates could not read."""
    body = b'{"messages": [{"role": "user", "content": "x"}], ' + place % value + b"}"
    with pytest.raises(InvalidRequest):
        parse_chat_request(parse_body(body), SERVED)


def test_a_template_of_the_request_is_refused_with_the_reason():
    error = refusal(chat_template="{{ messages }}")
    assert (error.param, error.code) == ("chat_template", "not_supported")
    assert "operator" in error.message
    assert parse(chat_template=None).prompts


@pytest.mark.parametrize(
    ("messages", "begun"),
    [([USER, BEGUN], "It is "), ([USER], ""), ([USER, {"role": "assistant", "content": None}], "")],
)
async def test_echo_puts_the_last_message_before_the_answer(serve, http, frontend, messages, begun):
    url = await serve()
    body = {"messages": messages, "echo": True, "n": 2}
    frontend.script = lambda stream: stream.push(
        *(delta("two", [1], choice=choice, end=finish()) for choice in range(stream.num_choices))
    )
    async with http.post(url + "/v1/chat/completions", json=body) as response:
        answer = await response.json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == [begun + "two"] * 2
    async with http.post(url + "/v1/chat/completions", json={**body, "stream": True}) as response:
        events = events_of(await response.read())
    texts = {0: "", 1: ""}
    for event in events[:-1]:
        texts[event["choices"][0]["index"]] += event["choices"][0]["delta"].get("content", "")
    assert texts == {0: begun + "two", 1: begun + "two"}
    async with http.post(url + "/v1/chat/completions", json={**body, "echo": False, "n": 1}) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == "two"


async def test_options_arrive_at_the_frontend(serve, http, frontend):
    frontend.has_priorities = True
    url = await serve(logprobs_mode="processed")
    body = {
        "messages": [USER, BEGUN], "continue_final_message": True, "add_special_tokens": True, "priority": -2,
        "truncate_prompt_tokens": 9, "chat_template_kwargs": {"a": 1},
    }  # fmt: skip
    async with http.post(url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200
    stream = frontend.streams[0]
    assert stream.priority == -2
    assert stream.sampling.processed_logprobs
    assert (stream.options.add_special_tokens, stream.options.truncate_prompt_tokens) == (True, 9)
    assert (stream.options.continue_final_message, stream.options.add_generation_prompt) == (True, False)
    assert json.loads(stream.options.template_kwargs) == {"a": 1}
