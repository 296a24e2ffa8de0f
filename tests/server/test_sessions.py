"""Streaming sessions over HTTP, against a frontend without an engine."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_frontend import MODEL, delta, finish

from callboard.errors import InvalidRequest, Overloaded
from callboard.mailbox.messages.requests import SessionInput, TextPrompt, TokenPrompt
from callboard.server.metrics import ServerMetrics
from callboard.server.request_timing import RequestTiming
from callboard.server.session_timing import SessionTiming

SESSION = {"model": MODEL, "prompt": "hi", "session": True, "stream": True}


class Reader:
    """The events of one open session, as they come."""

    def __init__(self, response):
        self._response = response

    async def event(self):
        async for line in self._response.content:
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").strip()
                return data.decode() if data == b"[DONE]" else json.loads(data)
        raise AssertionError("the stream was cut")


@pytest.fixture
def quiet(frontend):
    """Streams say what the test says."""
    frontend.script = lambda stream: None
    return frontend


@pytest.fixture(autouse=True)
def begins_at_once(frontend, monkeypatch):
    """The head of a stream comes with its first delta: tests that only add input need not wait for it."""
    submit = frontend.submit

    def submit_and_say(*args, **more):
        stream = submit(*args, **more)
        if more.get("session_idle_s") is not None and stream._events.empty():
            stream.push(delta("", []))
        return stream

    monkeypatch.setattr(frontend, "submit", submit_and_say)


def chunks(event):
    (choice,) = event["choices"]
    return choice["text"], choice["finish_reason"], event.get("paused"), event.get("usage")


async def give(http, url, session_id, body, **headers):
    async with http.post(f"{url}/v1/requests/{session_id}/input", json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_a_turn_ends_with_its_reason_and_usage_and_the_stream_stays_open(serve, http, quiet):
    url = await serve(session_idle_s=12.5)
    async with http.post(url + "/v1/completions", json=SESSION, headers={"X-Request-Id": "mine"}) as response:
        stream = await quiet.arrivals.get()
        assert stream.session_idle_s == 12.5
        reader = Reader(response)
        stream.push(delta("Hello", [1, 2]), delta(" you", [3], pause=finish("stop", stop_reason=7)))
        first, second = await reader.event(), await reader.event()
        assert chunks(first) == ("", None, None, None)
        assert chunks(second) == ("Hello", None, None, None)
        assert first["id"] == stream.request_id
        second = await reader.event()
        usage = {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        assert chunks(second) == (" you", "stop", True, usage)
        assert second["choices"][0]["stop_reason"] == 7

        assert await give(http, url, first["id"], {"prompt": "more"}) == (
            202,
            {"id": first["id"], "last": False, "object": "session.input"},
        )
        stream.push(delta("!", [4], end=finish("length")))
        assert chunks(await reader.event()) == ("!", "length", None, None)
        assert await reader.event() == "[DONE]"
    assert quiet.inputs == [(first["id"], SessionInput(TextPrompt("more")))]


async def test_the_usage_that_is_asked_for_at_the_end_is_of_the_last_turn(serve, http, quiet):
    quiet.script = lambda stream: stream.push(
        delta("a", [1], pause=finish("stop", 1)), delta("b", [2, 3], end=finish("stop", 2))
    )
    body = {**SESSION, "stream_options": {"include_usage": True}}
    async with http.post(await serve() + "/v1/completions", json=body) as response:
        reader = Reader(response)
        counts = [(await reader.event())["usage"] for _ in range(3)]
    assert [usage and usage["completion_tokens"] for usage in counts] == [1, None, 2]


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ({"prompt": "x", "last": True}, SessionInput(TextPrompt("x"), True)),
        ({"prompt": [1, 2]}, SessionInput(TokenPrompt([1, 2]))),
        ({"last": True}, None),
        ({"prompt": None, "last": True}, None),
    ],
)
async def test_inputs(serve, http, quiet, body, given):
    url = await serve()
    async with http.post(url + "/v1/completions", json=SESSION):
        stream = quiet.streams[0]
        status, answer = await give(http, url, stream.request_id, body)
        assert (status, answer["last"]) == (202, bool(body.get("last")))
        assert quiet.inputs == [(stream.request_id, given)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [100]}, "prompt"),
        ({"prompt": [1] * 64}, "prompt"),
        ({"prompt": "a", "last": 1}, "last"),
        ({"prompt": 1}, "prompt"),
    ],
)
async def test_bad_inputs_leave_the_session_alone(serve, http, quiet, body, param):
    url = await serve()
    async with http.post(url + "/v1/completions", json=SESSION) as response:
        stream = quiet.streams[0]
        status, answer = await give(http, url, stream.request_id, body)
        assert (status, answer["error"]["param"].partition("[")[0]) == (400, param)
        assert quiet.inputs == []
        stream.push(delta("a", [1], end=finish()))
        assert await Reader(response).event()


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stream": False}, "stream"),
        ({"n": 2}, "n"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, "stream_options"),
        ({"session": 1}, "session"),
    ],
)
async def test_what_a_session_cannot_be_asked(serve, http, quiet, more, param):
    async with http.post(await serve() + "/v1/completions", json={**SESSION, **more}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["param"].partition(".")[0]) == (400, param)
    assert quiet.streams == []


async def test_chat_has_no_sessions(serve, http, quiet):
    body = {"messages": [{"role": "user", "content": "a"}], "session": True, "stream": True}
    url = await serve()
    async with http.post(url + "/v1/chat/completions", json=body) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "session")


async def test_with_several_frontends_input_would_not_find_its_session(serve, http, quiet):
    quiet.takes_sessions = False
    async with http.post(await serve() + "/v1/completions", json=SESSION) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "not_supported_yet")


async def test_no_session_and_one_that_has_ended(serve, http, quiet):
    url = await serve()
    assert (await give(http, url, "cmpl-none", {"prompt": "a"}))[0] == 404
    async with http.post(url + "/v1/completions", json=SESSION) as response:
        stream = quiet.streams[0]
        stream.push(delta("a", [1], end=finish()))
        await response.read()
    status, answer = await give(http, url, stream.request_id, {"prompt": "a"})
    assert (status, answer["error"]["code"]) == (409, "session_ended")


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (InvalidRequest("last", code="session_complete", status=409), 409, "session_complete"),
        (InvalidRequest("gone", code="session_not_found", status=404), 409, "session_ended"),
        (Overloaded("many", retry_after_s=1), 429, None),
    ],
)
async def test_what_the_frontend_says(serve, http, quiet, refusal, status, code):
    url = await serve()
    quiet.input_refusal = refusal
    async with http.post(url + "/v1/completions", json=SESSION):
        got, answer = await give(http, url, quiet.streams[0].request_id, {"prompt": "a"})
        assert (got, answer["error"]["code"]) == (status, code)


async def test_only_the_key_that_opened_it_may_add(serve, http, quiet, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    keys.chmod(0o600)
    url = await serve(api_keys_file=str(keys))
    headers = {"Authorization": "Bearer one"}
    async with http.post(url + "/v1/completions", json=SESSION, headers=headers) as response:
        stream = quiet.streams[0]
        statuses = [
            (await give(http, url, stream.request_id, {"prompt": "a"}, Authorization=key))[0]
            for key in ("Bearer two", "Bearer three", "bearer  one")
        ]
        assert statuses == [404, 401, 202]
        stream.push(delta("a", [1], end=finish()))
        await response.read()
    for key, status in (("Bearer two", 404), ("Bearer one", 409)):
        assert (await give(http, url, stream.request_id, {"prompt": "a"}, Authorization=key))[0] == status


async def test_leaving_closes_the_stream_of_a_paused_session(serve, http, quiet):
    url = await serve()
    async with http.post(url + "/v1/completions", json=SESSION) as response:
        stream = quiet.streams[0]
        stream.push(delta("a", [1], pause=finish()))
        await Reader(response).event()
        response.close()
    async with asyncio.timeout(30):
        await stream.closed.wait()


def test_each_turn_is_counted_as_a_request_of_its_own(frontend):
    metrics = ServerMetrics(frontend)
    timing = SessionTiming(RequestTiming(metrics), metrics, 10)
    timing.observe(delta("a", [1]))
    timing.on_input()
    timing.observe(delta("b", [2], pause=finish("stop", 2)))
    timing.observe(delta("c", [3], pause=finish("length", 1)))  # began with the input that was there
    timing.observe(delta("", [], end=finish("timeout", 0)))  # nothing ran
    timing.end("abort")
    samples = {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in metrics.requests.families()
        for sample in family.samples
    }
    assert samples["callboard:request_success_total", "stop"] == 1
    assert samples["callboard:request_success_total", "length"] == 1
    assert samples["callboard:request_success_total", "abort"] == 0
    assert samples["callboard:time_to_first_token_seconds_count", None] == 2
    assert samples["callboard:request_generation_tokens_sum", None] == 3
    timing.on_input()
    timing.end("abort")
    timing.end("abort")
    (success, *_) = metrics.requests.families()
    assert {s.labels["finished_reason"]: s.value for s in success.samples}["abort"] == 1
