"""Bad bodies are a 400 that names the field; nothing a client sends is a 500."""

from __future__ import annotations

import json

import pytest
from fake_frontend import MAX_MODEL_LEN, MODEL, VOCAB_SIZE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
COMPLETION = {"model": MODEL, "prompt": "a", "max_tokens": 2}


async def post(http, url, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(url + path, data=data, headers={"Content-Type": "application/json"}) as response:
        return response.status, json.loads(await response.read()), response.headers


async def chat(http, url, **fields):
    return await post(http, url, "/v1/chat/completions", {**CHAT, **fields})


async def completion(http, url, **fields):
    return await post(http, url, "/v1/completions", {**COMPLETION, **fields})


def check_refusal(status, answer, param, expected_status=400):
    assert status == expected_status, answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"].startswith(param)
        assert param in error["message"]


BAD_CHAT_FIELDS = [
    *[("messages", value) for value in (5, [5], [], [{}], [{"role": "user", "content": 7}], None, "hi", [[]])],
    *[("messages", [{"role": "user", "content": value}]) for value in ([7], [{"type": "text"}], [{}], {"a": 1})],
    ("messages", [{"role": 5, "content": "x"}]),
    ("messages", [{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]),
    *[("tools", value) for value in (5, [5], [{}], {"a": 1}, [{"type": "function", "function": {"name": "f"}}])],
    *[("tool_choice", value) for value in (5, "required", {}, {"type": "function", "function": {"name": "f"}})],
    *[("stop", value) for value in (5, [5], [""], "", ["a"] * 5000, ["a"] * 5, "x" * 257)],
    *[("n", value) for value in ("x", 0, -1, 129, 100_000, 1.5, True)],
    *[("temperature", value) for value in ("hot", -1, 2.5e9, True)],
    *[("top_p", value) for value in (1.5, -0.1, 1.0000001, "x")],
    *[("top_k", value) for value in (-2, 1.5, "x", 2**64)],
    *[("min_p", value) for value in (-0.1, 1.1, "x")],
    *[("max_tokens", value) for value in (-5, 0, 1.5, "9", 2**31, 2**70, True)],
    *[("max_completion_tokens", value) for value in (-5, 0, "9", MAX_MODEL_LEN)],
    *[("logprobs", value) for value in (7, "yes")],
    *[("top_logprobs", value) for value in (-1, 21, True, 3)],
    *[("seed", value) for value in (2**64, 2**63, -(2**63) - 1, 1.5, "x")],
    *[("response_format", value) for value in (5, {}, {"type": "nonsense"}, {"type": "grammar"})],
    ("response_format", {"type": "json_schema", "schema": {"type": "object"}}),
    ("response_format", {"type": "json_schema"}),
    *[("stream", value) for value in ("yes", 1, [])],
    *[("stream_options", value) for value in ([], 5, {"include_usage": 5}, {"include_usage": True}, {})],
    *[("cache_salt", value) for value in ("", 5)],
    *[("ignore_eos", value) for value in ("x", 0)],
    *[("model", value) for value in (5, [], {})],
    *[("logit_bias", value) for value in ({"a": 1}, {"5": "x"}, {"5": None}, {"5": True}, {"1.5": 1}, {"": 1}, 5, [])],
    *[("logit_bias", value) for value in ({str(VOCAB_SIZE): 1}, {"-1": 1}, {str(index): 1 for index in range(4097)})],
    *[("presence_penalty", value) for value in (3, -2.5, "x")],
    *[("frequency_penalty", value) for value in (2.5, -2.5)],
    *[("repetition_penalty", value) for value in (0, -1, 1000, "x")],
    *[("min_tokens", value) for value in (2, -1, "x")],
    *[("stop_token_ids", value) for value in ([VOCAB_SIZE], [-1], ["1"], 5, [2**70])],
    *[("allowed_token_ids", value) for value in ([], [VOCAB_SIZE], [-1], [1.5], {})],
    *[("bad_words", value) for value in ([""], "a", [5], ["x" * 257], ["w"] * 5000)],
    *[("prompt_logprobs", value) for value in (-1, 21, True)],
    *[("logprobs_mode", value) for value in ("raw", "raw_logits", 5)],
    *[("truncate_prompt_tokens", value) for value in (0, -2, MAX_MODEL_LEN, "5")],
    *[("repetition_detection", value) for value in (5, [], {}, {"max_pattern_size": -1}, {"max_pattern_size": 5000})],
    ("repetition_detection", {"max_pattern_size": 4, "min_count": 1}),
    ("repetition_detection", {"max_pattern_size": 4, "min_pattern_size": 5}),
    *[("best_of", value) for value in (2, 0, "x")],
    *[("include_stop_str_in_output", value) for value in (1, "yes")],
    *[("skip_special_tokens", value) for value in (0, "no")],
    *[("return_tokens_as_token_ids", value) for value in (1, [])],
    *[("echo", value) for value in (5, "yes")],
    ("functions", [{"name": "f"}]),
    *[("function_call", value) for value in ({"name": "f"}, "required", {}, 5)],
    *[("structured_outputs", value) for value in (5, {}, {"regx": "a"}, {"json": 5}, {"choice": []}, {"regex": ""})],
    *[("structured_outputs", {"regex": "a", name: value}) for name, value in (("choice", ["a"]), ("json", {}))],
    *[("structured_outputs", {"regex": "a", "whitespace_pattern": " "})],
    *[("guided_json", value) for value in (5, [], "x", "{", "[]", '{"a": NaN}')],
    *[("guided_choice", value) for value in ([], "a", [5])],
    *[(name, value) for name in ("guided_regex", "guided_grammar", "regex", "ebnf") for value in (5, {})],
    *[("regex", ""), ("json_schema", "{"), ("grammar", 5)],
    *[("structural_tag", value) for value in (5, {}, "x", {"structures": [], "triggers": ["a"]}, {"format": {}})],
    *[("structural_tag", {"structures": [{"begin": "a", "schema": 5, "end": ""}], "triggers": ["a"]})],
    *[("structural_tag", {"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["b"]})],
    ("guided_whitespace_pattern", " "),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "alloy"}),
    *[("priority", value) for value in (1, -1, 2**40, "x")],
    *[("continue_final_message", value) for value in (1, "x")],
    *[("add_generation_prompt", value) for value in (0, [])],
    *[("add_special_tokens", value) for value in (5, "yes")],
    ("chat_template", "{{ x }}"),
    *[("chat_template_kwargs", value) for value in (5, [], {"messages": []}, {"chat_template": "{{ x }}"})],
    *[("documents", value) for value in (5, [5], {"a": 1})],
    ("use_beam_search", True),
    *[("reasoning_effort", value) for value in ("huge", 5, "")],
    *[("include_reasoning", value) for value in (1, "yes")],
]


async def test_wrong_chat_fields(serve, http, frontend):
    url = await serve()
    for param, value in BAD_CHAT_FIELDS:
        status, answer, _ = await chat(http, url, **{param: value})
        check_refusal(status, answer, param)
    assert frontend.streams == []
    status, _, _ = await chat(http, url)
    assert status == 200


BAD_COMPLETION_FIELDS = [
    *[("prompt", value) for value in ([1, 2, 99999999], [-1], [1.5], ["1"], [[1], []], [2**63], [True], [2**70])],
    *[
        ("prompt", value)
        for value in ("", [], [[]], [""], None, 5, {}, ["a", ""], [[1], "b", []], [["x"]], [1, "a"], [None], True)
    ],
    ("prompt", [VOCAB_SIZE]),
    ("prompt", [1] * MAX_MODEL_LEN),
    *[("logprobs", value) for value in (-1, 21, True, "x")],
    *[("echo", value) for value in (1, 5)],
    *[("best_of", value) for value in (2, 0)],
    ("prompt", ["a"] * 1025),
    ("prompt", [[1], [1] * MAX_MODEL_LEN]),
    ("prompt", [[1], [VOCAB_SIZE]]),
    ("suffix", "x"),
    ("max_tokens", 0),
    ("max_tokens", MAX_MODEL_LEN),
    *[("seed", value) for value in (9223372036854775808, -9223372036854775809)],
    ("add_special_tokens", "x"),
    ("prompt_embeds", "AAAA"),
]


async def test_wrong_completion_fields(serve, http, frontend):
    url = await serve()
    for param, value in BAD_COMPLETION_FIELDS:
        status, answer, _ = await completion(http, url, **{param: value})
        check_refusal(status, answer, param)
    assert frontend.streams == []


async def test_ids_out_of_vocabulary_are_named(serve, http):
    url = await serve()
    for ids in ([1, 2, 99999999], [-1], [2**63], [VOCAB_SIZE]):
        _, answer, _ = await completion(http, url, prompt=ids)
        assert "out of vocabulary" in answer["error"]["message"]
        assert str(ids[-1]) in answer["error"]["message"]
    status, _, _ = await completion(http, url, prompt=[0, VOCAB_SIZE - 1])
    assert status == 200


async def test_length_of_token_prompts(serve, http, frontend):
    """Prompt and output together fit the model's length, to the token."""
    url = await serve()
    limit = MAX_MODEL_LEN
    cases = [(limit - 1, 1, 200), (limit, 1, 400), (limit + 1, 1, 400), (limit - 8, 8, 200), (limit - 8, 9, 400)]
    for num_tokens, max_tokens, expected in cases:
        status, answer, _ = await completion(http, url, prompt=[1] * num_tokens, max_tokens=max_tokens)
        assert status == expected, (num_tokens, max_tokens)
        if expected == 400:
            assert str(limit) in answer["error"]["message"]
            assert str(max_tokens if num_tokens < limit else num_tokens) in answer["error"]["message"]
    status, _, _ = await completion(http, url, prompt=[1] * (limit - 8), max_tokens=None)
    assert status == 200
    assert frontend.streams[-1].sampling.max_tokens is None


async def test_seeds(serve, http, frontend):
    url = await serve()
    for seed, engine_seed in [(2**63 - 1, 2**63 - 1), (-(2**63), 2**63), (0, 0), (-1, 2**64 - 1)]:
        status, _, _ = await completion(http, url, seed=seed)
        assert status == 200
        assert frontend.streams[-1].sampling.seed == engine_seed
    for _ in range(4):
        await completion(http, url)
    drawn = {stream.sampling.seed for stream in frontend.streams[-4:]}
    assert len(drawn) == 4
    assert all(0 <= seed < 2**64 for seed in drawn)


async def test_every_keyword_arrives(serve, http, frontend):
    url = await serve()
    status, _, _ = await chat(
        http, url, temperature=0, top_k=-1, top_p=0.5, min_p=0.1, seed=3, stop="END", max_tokens=9,
        max_completion_tokens=4, ignore_eos=True, logprobs=True, top_logprobs=2, cache_salt="s",
    )  # fmt: skip
    assert status == 200
    stream = frontend.streams[-1]
    sampling = stream.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.0, 0, 0.5, 0.1)
    assert (sampling.seed, sampling.stop, sampling.max_tokens, sampling.ignore_eos) == (3, ("END",), 4, True)
    assert (sampling.logprobs, stream.cache_salt) == (2, "s")
    await chat(http, url, logprobs=True, stop=["a", "b"], top_k=5)
    sampling = frontend.streams[-1].sampling
    assert (sampling.logprobs, sampling.stop, sampling.top_k, sampling.temperature) == (0, ("a", "b"), 5, 1.0)
    await chat(http, url, logprobs=False, top_logprobs=0, stop=[])
    assert (frontend.streams[-1].sampling.logprobs, frontend.streams[-1].sampling.stop) == (None, ())


async def test_messages_arrive_as_they_were_sent(serve, http, frontend):
    url = await serve()
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": [{"type": "text", "text": "abc"}], "name": "bob"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            for arguments in ("", "{}", "{bad", None)
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "critic", "content": ""},
        {"role": "user", "content": []},
    ]  # fmt: skip
    status, _, _ = await chat(http, url, messages=messages)
    assert status == 200
    system, user, assistant, tool, critic, empty = frontend.streams[-1].prompt.messages
    assert (system.role, system.content) == ("system", "a\nb")
    assert (user.content, user.name) == ("abc", "bob")
    assert assistant.content is None
    assert [call.arguments for call in assistant.tool_calls] == ["", "{}", "{bad", ""]
    assert [(call.id, call.name) for call in assistant.tool_calls] == [("c1", "f")] * 4
    assert (tool.tool_call_id, tool.content) == ("c1", "ok")
    assert (critic.role, critic.content) == ("critic", "")
    assert empty.content == ""


async def test_an_image_is_refused_with_its_place(serve, http):
    url = await serve()
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    status, answer, _ = await chat(http, url, messages=[*CHAT["messages"], {"role": "user", "content": parts}])
    check_refusal(status, answer, None)
    assert answer["error"]["param"] == "messages[1].content[1].type"
    assert "image_url" in answer["error"]["message"]


async def test_logit_bias_keys_are_named(serve, http):
    url = await serve()
    for bias, key in [({"10000000": -100}, "10000000"), ({"abc": 1}, "abc"), ({"5": "x"}, "5"), ({"-1": 1}, "-1")]:
        status, answer, _ = await chat(http, url, logit_bias=bias)
        check_refusal(status, answer, "logit_bias")
        assert key in answer["error"]["message"]


async def test_neutral_values_are_fine(serve, http, frontend):
    url = await serve()
    neutral = {
        "n": 1, "best_of": 1, "echo": False, "suffix": None, "logit_bias": {}, "presence_penalty": 0,
        "frequency_penalty": 0.0, "repetition_penalty": 1, "min_tokens": 0, "stop_token_ids": [], "bad_words": [],
        "allowed_token_ids": None, "prompt_logprobs": None, "truncate_prompt_tokens": None, "priority": 0,
        "skip_special_tokens": True, "structured_outputs": None, "response_format": {"type": "text"}, "user": "u",
    }  # fmt: skip
    status, _, headers = await completion(http, url, **neutral, add_special_tokens=True)
    assert status == 200
    assert "x-ignored-fields" not in headers
    chat_neutral = {
        "tools": [], "tool_choice": "auto", "functions": None, "modalities": ["text"], "add_generation_prompt": True,
        "continue_final_message": False, "chat_template_kwargs": {}, "documents": [], "add_special_tokens": False,
        "parallel_tool_calls": True, "store": False, "metadata": {"a": "b"}, "service_tier": "auto",
        "reasoning_effort": None,
    }  # fmt: skip
    status, _, headers = await chat(http, url, **neutral, **chat_neutral)
    assert status == 200
    assert "x-ignored-fields" not in headers
    everything_null = dict.fromkeys(
        [*neutral, *chat_neutral, "temperature", "top_p", "stop", "seed", "stream", "model"]
    )
    status, _, _ = await chat(http, url, **everything_null)
    assert status == 200


async def test_a_message_field_whose_name_is_no_text_is_refused(serve, http):
    url = await serve()
    body = b'{"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "x", "\xff": 1}]}'
    status, answer, _ = await post(http, url, "/v1/chat/completions", body)
    check_refusal(status, answer, "messages[1]")


@pytest.mark.parametrize("streams", [True, False])
async def test_unknown_fields_are_named(serve, http, streams):
    url = await serve()
    body = {**CHAT, "foo": {"bar": 1}, "user": "u", "näme\r\nx: y": 1, "stream": streams}
    async with http.post(url + "/v1/chat/completions", json=body) as response:
        assert response.status == 200
        assert response.headers["x-ignored-fields"] == "foo, n%C3%A4me%0D%0Ax%3A%20y"
        assert "x" not in response.headers
    many = {f"field{index}": 1 for index in range(5000)}
    async with http.post(url + "/v1/chat/completions", json={**CHAT, **many}) as response:
        assert response.status == 200
        assert len(response.headers["x-ignored-fields"]) < 4096


async def test_fields_of_other_clients_are_accepted(serve, http):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": "x", "name": "bob", "foo": 1},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ],
        "user": "u", "store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True, "service_tier": "auto",
        "foo": {"bar": 1}, "max_completion_tokens": 2,
    }  # fmt: skip
    status, answer, headers = await post(http, await serve(), "/v1/chat/completions", body)
    assert (status, len(answer["choices"])) == (200, 1)
    assert headers["x-ignored-fields"] == "foo, messages%5B0%5D.foo"


async def test_models(serve, http):
    url = await serve()
    status, answer, _ = await chat(http, url, model="gpt-4")
    assert status == 404
    assert answer["error"]["param"] == "model"
    assert "gpt-4" in answer["error"]["message"]
    status, answer, _ = await post(http, url, "/v1/completions", {"prompt": "a"})
    assert (status, answer["model"]) == (200, MODEL)


NO_JSON_OBJECT = [
    b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b'{"prompt": "\xff"}', b'{"temperature": NaN, "prompt": "a"}',
    b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": "a", "temperature": 1e400}', b"[" * 100_000,
    b'{"x":' * 100_000, b'{"x":' * 50_000 + b"1" + b"}" * 50_000, b'{"prompt": "\\ud800"}', b'{"prompt": ["\\ud800"]}',
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}",
    b'{"prompt": "a"} x', b'{"prompt": [1,]}', b'{"messages": [{"role": "user", "content": "\\udfff"}]}',
]  # fmt: skip


async def test_bodies_that_are_no_json_object(serve, http, frontend):
    url = await serve()
    for body in NO_JSON_OBJECT:
        for path in ("/v1/completions", "/v1/chat/completions"):
            status, answer, _ = await post(http, url, path, body)
            check_refusal(status, answer, None)
            assert len(json.dumps(answer)) < 10_000
    assert frontend.streams == []


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/detokenize"])
async def test_a_body_that_says_that_it_is_no_json(serve, http, path):
    """What a web page can send to other origins without asking is among them."""
    data = json.dumps({**COMPLETION, "messages": []}).encode()
    url = await serve()
    for wrong in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", "text/json"):
        async with http.post(url + path, data=data, headers={"Content-Type": wrong}) as response:
            check_refusal(response.status, await response.json(), None, expected_status=415)


@pytest.mark.parametrize(
    "right", ["application/json", "Application/JSON; charset=utf-8", "application/octet-stream", None]
)
async def test_a_body_that_may_be_json(serve, http, right):
    url = await serve()
    headers = {} if right is None else {"Content-Type": right}
    data = json.dumps(COMPLETION).encode()
    async with http.post(
        url + "/v1/completions", data=data, headers=headers, skip_auto_headers=["Content-Type"]
    ) as response:
        assert response.status == 200


async def test_a_body_that_is_too_large(serve, http):
    url = await serve(max_request_bytes=1000)
    status, answer, _ = await completion(http, url, prompt="x" * 2000)
    check_refusal(status, answer, None, expected_status=413)
    status, _, _ = await completion(http, url)
    assert status == 200


async def test_broken_compression(serve, http):
    url = await serve()
    async with http.post(url + "/v1/completions", data=b"no gzip", headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from(
    sorted({name for name, _ in BAD_CHAT_FIELDS} | {name for name, _ in BAD_COMPLETION_FIELDS} | {"user", "foo"})
)


@pytest.mark.slow
async def test_random_bodies_are_never_a_500(serve, http):
    url = await serve()
    bodies: list[tuple[str, bytes]] = []

    @settings(max_examples=250, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(field_names, json_values, max_size=4), st.booleans(), st.binary(max_size=30))
    def draw(fields, is_chat, garbage):
        base = CHAT if is_chat else COMPLETION
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        bodies.append((path, json.dumps({**base, **fields}).encode("utf-8", "surrogatepass")))
        bodies.append((path, garbage))

    draw()
    for path, body in bodies:
        async with http.post(url + path, data=body) as response:
            answer = await response.read()
            assert response.status in (200, 400, 404), (body, answer)
            if response.status != 200:
                assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}
