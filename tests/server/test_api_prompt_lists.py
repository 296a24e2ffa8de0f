"""Completions with several prompts: one request to the client, one for each prompt to the engine."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_frontend import MODEL, FakeFrontend, FakeStream, delta, events_of, finish
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from callboard.errors import EngineFailure, InvalidRequest, Overloaded, Unavailable
from callboard.mailbox.messages.requests import Finish, TextPrompt, TokenPrompt, Usage
from callboard.server.prompt_fields import prompts_of
from callboard.server.prompt_streams import PromptStreams

PROMPTS = ["first", [1, 2], "third"]


def index_of(stream):
    return int(stream.request_id.rpartition("-")[2])


def by_prompt(stream):
    """Choice c of prompt p says <p.c> in two deltas; prompt p has 10 + p tokens, of which p were cached."""
    prompt = index_of(stream) if stream.request_id.count("-") == 2 else 0
    for choice in range(stream.num_choices):
        stream.push(delta(f"<{prompt}", [1], choice=choice))
    for choice in reversed(range(stream.num_choices)):
        end = Finish("stop", Usage(10 + prompt, 2, prompt + choice))
        stream.push(delta(f".{choice}>", [2], choice=choice, position=1, end=end))


async def post(http, url, **fields):
    async with http.post(url + "/v1/completions", json={"model": MODEL, **fields}) as response:
        return response.status, await response.json()


def prompts(value):
    return prompts_of(json.dumps(value).encode(), vocab_size=100)


def test_forms_of_a_prompt():
    a, ids = TextPrompt("a"), TokenPrompt([1, 2])
    for value, expected in [
        ("a", [a]), (["a"], [a]), ([1, 2], [ids]), ([[1, 2]], [ids]), (["a", "a"], [a, a]),
        ([[1, 2], [1, 2]], [ids, ids]),
        (["a", [1, 2]], [a, ids]), (["1", "2"], [TextPrompt("1"), TextPrompt("2")]), ("1", [TextPrompt("1")]),
    ]:  # fmt: skip
        assert prompts(value) == expected
    for value, param in [
        (["a", ""], "prompt[1]"),
        ([[1], [], [2]], "prompt[1]"),
        ([[1], [100]], "prompt[1]"),
        ([], "prompt"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            prompts(value)
        assert caught.value.param == param
        assert param in caught.value.message


@pytest.mark.parametrize("n", [1, 3])
async def test_a_whole_answer_has_the_choices_of_all_prompts_in_order(serve, http, frontend, n):
    frontend.script = by_prompt
    status, answer = await post(http, await serve(), prompt=PROMPTS, n=n, return_token_ids=True, cache_salt="s", seed=3)
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == list(range(3 * n))
    assert [choice["text"] for choice in answer["choices"]] == [f"<{p}.{c}>" for p in range(3) for c in range(n)]
    assert answer["usage"] == {
        "prompt_tokens": 10 + 11 + 12,
        "completion_tokens": 2 * 3 * n,
        "total_tokens": 33 + 6 * n,
        "prompt_tokens_details": {"cached_tokens": 0 + 1 + 2},
    }
    assert [stream.prompt for stream in frontend.streams] == [
        TextPrompt("first"),
        TokenPrompt([1, 2]),
        TextPrompt("third"),
    ]
    assert {(stream.num_choices, stream.cache_salt, stream.sampling.seed) for stream in frontend.streams} == {
        (n, "s", 3)
    }
    assert [stream.request_id for stream in frontend.streams] == [f"{answer['id']}-{index}" for index in range(3)]
    assert all(stream.closed.is_set() for stream in frontend.streams)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_keeps_the_indexes(serve, http, frontend, n):
    frontend.script = by_prompt
    body = {"prompt": PROMPTS, "n": n, "stream": True, "stream_options": {"include_usage": True}}
    async with http.post(await serve() + "/v1/completions", json=body) as response:
        events = events_of(await response.read())
    assert events.pop() == "[DONE]"
    usage = events.pop()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (33, 6 * n)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    texts = [""] * 3 * n
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [f"<{p}.{c}>" for p in range(3) for c in range(n)]
    ends = [event["choices"][0]["index"] for event in events if event["choices"][0]["finish_reason"] == "stop"]
    assert sorted(ends) == list(range(3 * n))


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        lambda: InvalidRequest("prompt is too long", param="prompt"),
        lambda: Overloaded("full", retry_after_s=3),
    ],
)
async def test_a_prompt_that_is_refused_refuses_all(serve, http, frontend, streams, error):
    """The others wait for tokens meanwhile, and are closed."""
    error = error()
    frontend.script = lambda stream: stream.push(error) if index_of(stream) == 1 else None
    status, answer = await post(http, await serve(), prompt=PROMPTS, stream=streams)
    assert status == error.status
    is_of_one = isinstance(error, InvalidRequest)
    assert answer["error"]["param"] == ("prompt[1]" if is_of_one else None)
    assert answer["error"]["message"] == ("prompt[1]: prompt is too long" if is_of_one else "full")
    assert len(frontend.streams) == 3
    assert all(stream.closed.is_set() for stream in frontend.streams)


async def test_a_prompt_that_is_not_taken_closes_those_before_it(serve, http, frontend):
    taken = frontend.submit

    def submit(*args, **kwargs):
        if len(frontend.streams) == 2:
            raise Unavailable("draining")
        return taken(*args, **kwargs)

    frontend.submit = submit
    status, _ = await post(http, await serve(), prompt=PROMPTS)
    assert status == 503
    assert [stream.closed.is_set() for stream in frontend.streams] == [True, True]


@pytest.mark.parametrize(
    "last", [EngineFailure("the worker died"), delta(end=finish("error", message="the worker died"))]
)
async def test_a_fault_of_one_prompt_ends_all(serve, http, frontend, last):
    frontend.script = lambda stream: stream.push(last) if index_of(stream) == 2 else None
    url = await serve()
    status, answer = await post(http, url, prompt=PROMPTS)
    assert (status, answer["error"]["message"]) == (500, "the worker died")
    assert all(stream.closed.is_set() for stream in frontend.streams)
    frontend.script = lambda stream: stream.push(delta("a", [1])) if index_of(stream) == 0 else None
    async with http.post(url + "/v1/completions", json={"prompt": PROMPTS, "stream": True}) as response:
        line = await response.content.readline()
        assert json.loads(line.removeprefix(b"data: "))["choices"][0]["text"] == "a"
        frontend.streams[-1].push(last)
        events = events_of((await response.read()).removeprefix(b"\n"))
    assert events == [answer, "[DONE]"]
    for stream in frontend.streams:
        await stream.closed.wait()


async def test_a_client_that_leaves_closes_all_prompts(serve, http, frontend):
    frontend.script = lambda stream: None
    url = await serve()
    request = asyncio.create_task(post(http, url, prompt=PROMPTS))
    streams = [await frontend.arrivals.get() for _ in range(3)]
    request.cancel()
    for stream in streams:
        await stream.closed.wait()


async def test_the_limit_counts_prompts_times_n(serve, http, frontend):
    url = await serve()
    status, answer = await post(http, url, prompt=["a"] * 100, n=11)
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert "1,100" in answer["error"]["message"]
    assert "1,024" in answer["error"]["message"]
    assert frontend.streams == []
    status, answer = await post(http, url, prompt=["a"] * 128, n=8)
    assert (status, len(answer["choices"])) == (200, 1024)


async def test_more_choices_than_the_engine_ever_holds_are_a_400_and_no_429_for_ever(serve, http, frontend):
    frontend.max_live_requests = 12
    url = await serve()
    status, answer = await post(http, url, prompt=["a"] * 13)
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert "13 prompts are 13 choices, and this engine holds 12 at once" in answer["error"]["message"]
    status, answer = await post(http, url, prompt=["a"] * 5, n=3)
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert "5 prompts with n=3 are 15 choices" in answer["error"]["message"]
    assert frontend.streams == []
    status, answer = await post(http, url, prompt=["a"] * 4, n=3)
    assert (status, len(answer["choices"])) == (200, 12)


@pytest.mark.parametrize("streams", [True, False])
async def test_metrics_count_a_request_of_several_prompts_once(serve, http, frontend, streams):
    """T01: one first token and one end a request, N - 1 intervals a choice of N tokens."""
    frontend.script = by_prompt
    url = await serve()
    for _ in range(5):
        async with http.post(url + "/v1/completions", json={"prompt": ["a", "b"], "stream": streams}) as response:
            await response.read()
    async with http.post(url + "/v1/completions", json={"prompt": ["a", ""]}) as response:
        assert response.status == 400
    async with http.get(url + "/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    samples = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    assert samples["callboard:time_to_first_token_seconds_count",] == 5
    assert samples["callboard:e2e_request_latency_seconds_count",] == 5
    assert samples["callboard:inter_token_latency_seconds_count",] == 5 * 2
    assert samples["callboard:request_success_total", "stop"] == 5


@settings(max_examples=40, deadline=None, database=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=2, max_size=5))
def test_any_mixture_arrives_in_the_order_of_each_prompt(scripts):
    """Of each prompt and choice the deltas come in their order, none is lost, and then the stream is over."""
    scripts = [[*script, *range(2)] for script in scripts]  # every choice has an end

    async def run():
        streams = []
        for index, script in enumerate(scripts):
            stream = FakeStream(f"r-{index}", None, None, "", False, 2)
            for position, choice in enumerate(script):
                is_end = position >= len(script) - 2
                stream.push(delta(f"{position}", [1], choice=choice, end=finish() if is_end else None))
            streams.append(stream)
        merged = PromptStreams("r", streams, 2)
        got = [each async for each in merged]
        merged.close()
        assert [one async for one in merged] == []
        return got

    got = asyncio.run(run())
    for index, script in enumerate(scripts):
        for choice in range(2):
            texts = [each.text for each in got if each.choice == 2 * index + choice]
            assert texts == [str(position) for position, own in enumerate(script) if own == choice]


async def test_closing_ends_the_readers():
    frontend = FakeFrontend(lambda stream: None)
    before = asyncio.all_tasks()
    streams = [frontend.submit(f"r-{index}", TextPrompt("a"), None) for index in range(3)]
    merged = PromptStreams("r", streams, 1)
    readers = asyncio.all_tasks() - before
    assert len(readers) == 3
    merged.close()
    merged.close()
    await asyncio.wait(readers)
    assert all(stream.closed.is_set() for stream in streams)
