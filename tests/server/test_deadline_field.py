"""deadline_ms and its end: a finish reason like any other, whole and in a stream."""

from __future__ import annotations

import pytest
from fake_frontend import delta, events_of, finish

PATHS = ("/v1/completions", "/v1/chat/completions")
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def body(path, **more):
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    return {**prompt, **more}


def out_of_time(stream):
    """None of its choices got a token."""
    for choice in range(stream.num_choices):
        stream.push(delta(choice=choice, end=finish("timeout", 0, 0)))


@pytest.mark.parametrize("path", PATHS)
async def test_it_goes_to_the_engine(serve, http, frontend, path):
    url = await serve()
    for value in (1, 1500, 0.5, 2**31 - 1, None):
        async with http.post(url + path, json=body(path, deadline_ms=value)) as response:
            assert response.status == 200 and "x-ignored-fields" not in response.headers
    async with http.post(url + path, json=body(path)) as response:
        assert response.status == 200
    assert [stream.deadline_ms for stream in frontend.streams] == [1, 1500, 0.5, 2**31 - 1, None, None]


async def test_each_prompt_of_a_list_has_it(serve, http, frontend):
    url = await serve()
    async with http.post(url + PATHS[0], json={"prompt": ["a", "b"], "deadline_ms": 9}) as response:
        assert response.status == 200
    assert [stream.deadline_ms for stream in frontend.streams] == [9, 9]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [0, -1, -0.5, 2**31, 1e300, "100", True, [1]])
async def test_others_are_a_400_that_names_it(serve, http, frontend, path, value):
    url = await serve()
    async with http.post(url + path, json=body(path, deadline_ms=value)) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "deadline_ms") and "deadline_ms" in error["message"]
    assert frontend.streams == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 3])
async def test_an_answer_without_a_token_is_a_200_that_says_timeout(serve, http, frontend, path, n):
    frontend.script = out_of_time
    url = await serve()
    async with http.post(url + path, json=body(path, n=n, deadline_ms=1)) as response:
        assert response.status == 200
        answer = await response.json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["timeout"] * n
    assert [choice.get("text", choice.get("message", {}).get("content")) for choice in answer["choices"]] == [""] * n
    assert answer["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_without_a_token_has_one_finish_reason_and_its_usage(serve, http, frontend, path):
    frontend.script = out_of_time
    url = await serve()
    async with http.post(url + path, json=body(path, deadline_ms=1, **USAGE)) as response:
        assert response.status == 200
        *chunks, usage, done = events_of(await response.read())
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["timeout"] and reasons[-1] == "timeout"
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 0, "[DONE]")


@pytest.mark.parametrize("streams", [False, True])
async def test_what_there_is_by_then_is_the_answer(serve, http, frontend, streams):
    frontend.script = lambda stream: stream.push(delta("Hel", [1]), delta("", [], position=1, end=finish("timeout", 1)))
    url = await serve()
    async with http.post(url + PATHS[0], json=body(PATHS[0], stream=streams)) as response:
        parts = events_of(await response.read())[:-1] if streams else [await response.json()]
    assert "".join(part["choices"][0]["text"] for part in parts) == "Hel"
    assert parts[-1]["choices"][0]["finish_reason"] == "timeout"


async def test_a_prompt_that_was_to_be_echoed_alone_did_not_end_by_length(serve, http, frontend):
    frontend.script = out_of_time
    url = await serve()
    async with http.post(url + PATHS[0], json={"prompt": "a", "echo": True, "max_tokens": 0}) as response:
        assert (await response.json())["choices"][0]["finish_reason"] == "timeout"


async def test_it_is_counted_under_its_name(serve, http, frontend):
    url = await serve()

    async def counted():
        async with http.get(url + "/metrics?compat=vllm") as response:
            lines = (await response.text()).splitlines()
        return [float(line.split()[-1]) for line in lines if "request_success_total{" in line and '"timeout"' in line]

    assert await counted() == [0, 0]
    frontend.script = out_of_time
    for _ in range(2):
        async with http.post(url + PATHS[0], json=body(PATHS[0])) as response:
            assert response.status == 200
    assert await counted() == [2, 2]
