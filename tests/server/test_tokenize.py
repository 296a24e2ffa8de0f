"""/tokenize and /detokenize over a fake frontend: vLLM's requests and answers, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_frontend import MAX_MODEL_LEN, MODEL, VOCAB_SIZE

from callboard.errors import InvalidRequest, Overloaded, Unavailable
from callboard.mailbox.messages.requests import ChatMessage, ChatPrompt, PromptOptions, TextPrompt
from callboard.server.tokenize_endpoints import TokenizeAnswer
from callboard.server.tokenize_request import TokenizeFields

MESSAGES = [{"role": "user", "content": "hi"}]


async def post(http, url, path, body):
    async with http.post(url + path, json=body) as response:
        return response.status, await response.json(), response.headers


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_a_text(serve, http, frontend, path):
    url = await serve()
    assert (await post(http, url, path, {"model": MODEL, "prompt": "ab"}))[:2] == (
        200,
        {"count": 2, "max_model_len": MAX_MODEL_LEN, "tokens": [97, 98], "token_strs": None},
    )
    status, answer, _ = await post(
        http, url, path, {"prompt": "ab", "return_token_strs": True, "add_special_tokens": False}
    )
    assert (status, answer["token_strs"]) == (200, ["a", "b"])
    assert frontend.tokenized == [
        (TextPrompt("ab"), PromptOptions()),
        (TextPrompt("ab"), PromptOptions(add_special_tokens=False)),
    ]


async def test_messages(serve, http, frontend):
    url = await serve()
    for more in (
        {},
        {"add_generation_prompt": False, "add_special_tokens": True},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"a": 1}, "documents": [], "tools": [], "user": "me"},
        {"documents": [{"text": "a"}], "chat_template_kwargs": None, "truncate_prompt_tokens": 3},
    ):
        status, answer, headers = await post(http, url, "/tokenize", {"messages": MESSAGES, **more})
        assert (status, answer["count"]) == (200, 2)
        assert "x-ignored-fields" not in headers
    assert {prompt for prompt, _ in frontend.tokenized} == {ChatPrompt((ChatMessage("user", "hi"),))}
    assert [options for _, options in frontend.tokenized] == [
        PromptOptions(),
        PromptOptions(add_special_tokens=True, add_generation_prompt=False),
        PromptOptions(add_generation_prompt=False, continue_final_message=True),
        PromptOptions(add_generation_prompt=False, continue_final_message=True),
        PromptOptions(template_kwargs=b'{"a":1}'),
        PromptOptions(template_kwargs=b'{"documents":[{"text": "a"}]}', truncate_prompt_tokens=3),
    ]


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
async def test_ids(serve, http, path):
    url = await serve()
    for ids in ([], [0, VOCAB_SIZE - 1]):
        expected = {"prompt": "".join(f"<{token_id}>" for token_id in ids)}
        assert (await post(http, url, path, {"model": MODEL, "tokens": ids}))[:2] == (200, expected)


async def test_what_nobody_looks_at_is_named(serve, http):
    url = await serve()
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        status, _, headers = await post(http, url, path, {"temperature": "hot", **body, "n": 2, "user": "me"})
        assert (status, headers["x-ignored-fields"]) == (200, "temperature, n")
    body = {"messages": [{**MESSAGES[0], "mood": "good"}], "color": "red"}
    _, _, headers = await post(http, url, "/tokenize", body)
    assert headers["x-ignored-fields"] == "color, messages%5B0%5D.mood"


REFUSED = [
    ("/tokenize", {}, 400, "prompt", "one of them is needed"),
    ("/tokenize", {"prompt": None}, 400, "prompt", "one of them is needed"),
    ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "messages", "not both"),
    ("/tokenize", {"prompt": ["a", "b"]}, 400, "prompt", "/tokenize takes one text"),
    ("/tokenize", {"prompt": [1, 2]}, 400, "prompt", "/tokenize takes one text"),
    ("/tokenize", {"prompt": 3}, 400, "prompt", "Expected `str | array | null`"),
    ("/tokenize", {"messages": []}, 400, "messages", "at least one"),
    ("/tokenize", {"messages": [{"content": "a"}]}, 400, "messages[0]", "role"),
    ("/tokenize", {"messages": MESSAGES, "tools": [{}]}, 400, "tools[0]", "type"),
    ("/tokenize", {"messages": MESSAGES, "tool_choice": "required"}, 400, "tool_choice", "no tools"),
    ("/tokenize", {"messages": MESSAGES, "reasoning_effort": "huge"}, 400, "reasoning_effort", "huge"),
    ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, 400, "chat_template", "not supported"),
    ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": []}, 400, "chat_template_kwargs", "object"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, 400, "add_special_tokens", "bool"),
    ("/tokenize", {"prompt": "a", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens", "allowed are 1 to"),
    ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model", "does not exist"),
    ("/detokenize", {}, 400, None, "tokens"),
    ("/detokenize", {"tokens": "a"}, 400, "tokens", "array"),
    ("/detokenize", {"tokens": [1, "a"]}, 400, "tokens[1]", "int"),
    ("/detokenize", {"tokens": [1, VOCAB_SIZE]}, 400, "tokens", f"token id {VOCAB_SIZE} is out of vocabulary"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens", "token id -1 is out of vocabulary"),
    ("/detokenize", {"tokens": [2**70]}, 400, "tokens", "out of vocabulary"),
    ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model", "does not exist"),
]


@pytest.mark.parametrize(("path", "body", "expected_status", "param", "says"), REFUSED)
async def test_refusals_name_the_field(serve, http, frontend, path, body, expected_status, param, says):
    status, answer, headers = await post(http, await serve(), path, body)
    assert set(answer) == {"error"} and set(answer["error"]) == {"message", "type", "param", "code"}
    assert (status, answer["error"]["param"]) == (expected_status, param), answer
    assert says in answer["error"]["message"]
    assert headers["x-request-id"]
    assert frontend.tokenized == []


async def test_generation_prompt_and_open_end_exclude_each_other(serve, http):
    body = {"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": True}
    status, answer, _ = await post(http, await serve(), "/tokenize", body)
    assert status == 400 and "add_generation_prompt" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_what_the_engine_refuses(serve, http, frontend, path):
    url = await serve()
    for error, status, retry_after in (
        (InvalidRequest("the template says no", param="messages"), 400, None),
        (Overloaded("full", retry_after_s=3), 429, "3"),
        (Unavailable("draining"), 503, "1"),
    ):
        frontend.refusal = error
        got, answer, headers = await post(http, url, path, {"prompt": "a", "tokens": [1]})
        assert (got, answer["error"]["message"]) == (status, error.message)
        assert headers.get("Retry-After") == retry_after


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_bodies_have_the_limits_of_all_bodies(serve, http, path):
    url = await serve(max_request_bytes=1000)
    for data, status in ((b"x" * 2000, 413), (b"not json", 400), (b"[]", 400), (b'{"tokens": [NaN]}', 400)):
        async with http.post(url + path, data=data) as response:
            assert (response.status, response.content_type) == (status, "application/json")
    async with http.get(url + path) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_a_large_body_is_parsed_in_the_thread(serve, http, frontend):
    """Beyond 64 KiB."""
    status, answer, _ = await post(http, await serve(), "/tokenize", {"prompt": "a" * 100_000})
    assert (status, answer["count"]) == (200, 100_000)


async def test_more_values_than_a_request_has_a_use_for(serve, http):
    status, answer, _ = await post(http, await serve(), "/detokenize", {"tokens": [1] * 200_000})
    assert (status, answer["error"]["code"]) == (400, "too_many_values")


def test_the_page_for_people_names_every_field() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    section = text.partition("## Tokenize and detokenize")[2].partition("\n## ")[0]
    fields = (*TokenizeFields.__struct_fields__, *TokenizeAnswer.__struct_fields__)
    assert [name for name in fields if f"`{name}`" not in section] == []


async def test_a_key_is_needed(serve, http, tmp_path):
    """Without it nobody makes the engine work, whatever the path begins with."""
    (tmp_path / "keys").write_text("secret\n")
    url = await serve(api_keys_file=str(tmp_path / "keys"))
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        for prefix in ("", "/v1"):
            async with http.post(url + prefix + path, json=body) as response:
                assert response.status == 401
            headers = {"Authorization": "Bearer secret"}
            async with http.post(url + prefix + path, json=body, headers=headers) as response:
                assert response.status == 200
