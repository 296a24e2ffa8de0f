"""`prompt_logprobs`, `return_tokens_as_token_ids` and running usage: what an answer tells beside its text."""

from __future__ import annotations

import pytest
from fake_frontend import MODEL, delta, events_of, finish
from prompt_details import OUTPUT_IDS, PROMPT, PROMPT_IDS, jumps

from callboard.mailbox.messages.requests import PromptDetails

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": MODEL, "prompt": PROMPT}
ENDPOINTS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
PROMPT_LOGPROBS = {
    0: [
        None,
        {"21": {"logprob": -2.5, "rank": 4, "decoded_token": " qu"}},
        {"22": {"logprob": -0.25, "rank": 1, "decoded_token": "ick"}},
        {"23": {"logprob": -9999.0, "rank": 90, "decoded_token": " fox"}},
    ],
    1: [
        None,
        {
            "21": {"logprob": -2.5, "rank": 4, "decoded_token": " qu"},
            "30": {"logprob": -0.5, "rank": 1, "decoded_token": " br"},
        },
        {"22": {"logprob": -0.25, "rank": 1, "decoded_token": "ick"}},
        {
            "23": {"logprob": -9999.0, "rank": 90, "decoded_token": " fox"},
            "33": {"logprob": -1.0, "rank": 1, "decoded_token": " dog"},
        },
    ],
}


async def post(http, url, path, **fields):
    async with http.post(url + path, json=fields) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def stream(http, url, path, **fields):
    async with http.post(url + path, json={**fields, "stream": True}) as response:
        assert response.status == 200, await response.text()
        events = events_of(await response.read())
    assert events.pop() == "[DONE]"
    return events


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("asked", [0, 1])
async def test_log_probabilities_of_the_prompt(serve, http, frontend, path, body, asked):
    """As vLLM writes them; in chat once, in completions in each choice; in a stream in the first chunk."""
    frontend.script = jumps
    url = await serve()
    is_chat = "chat" in path
    answer = await post(http, url, path, **body, prompt_logprobs=asked, n=2)
    assert frontend.streams[0].sampling.prompt_logprobs == asked
    holders = [answer] if is_chat else answer["choices"]
    assert [holder["prompt_logprobs"] for holder in holders] == [PROMPT_LOGPROBS[asked]] * len(holders)
    assert all("prompt_token_ids" not in holder for holder in holders)
    events = await stream(http, url, path, **body, prompt_logprobs=asked)
    holders = events if is_chat else [event["choices"][0] for event in events]
    assert holders[0]["prompt_logprobs"] == PROMPT_LOGPROBS[asked]
    assert all("prompt_logprobs" not in holder for holder in holders[1:])


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_nobody_asked_about_the_prompt(serve, http, frontend, path, body):
    frontend.script = jumps
    answer = await post(http, await serve(), path, **body, prompt_logprobs=None)
    assert "prompt_logprobs" not in answer
    assert "prompt_logprobs" not in answer["choices"][0]
    assert frontend.streams[0].sampling.prompt_logprobs is None


async def test_a_prompt_of_one_token_has_one_entry(serve, http, frontend):
    frontend.script = lambda stream: stream.push(delta("x", [1], end=finish(), prompt=PromptDetails([5], "a", [])))
    answer = await post(http, await serve(), "/v1/completions", **COMPLETION, prompt_logprobs=2)
    assert answer["choices"][0]["prompt_logprobs"] == [None]


@pytest.mark.parametrize("streams", [True, False])
async def test_tokens_named_by_id(serve, http, frontend, streams):
    frontend.script = jumps
    url = await serve()

    async def logprobs_of(path, **fields):
        fields = {**fields, "return_tokens_as_token_ids": True}
        if not streams:
            return [(await post(http, url, path, **fields))["choices"][0]["logprobs"]]
        choices = [event["choices"][0] for event in await stream(http, url, path, **fields)]
        return [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]

    parts = await logprobs_of("/v1/chat/completions", **CHAT, logprobs=True, top_logprobs=2)
    content = [entry for part in parts for entry in part["content"]]
    assert [entry["token"] for entry in content] == ["token_id:40", "token_id:42"]
    assert [entry["bytes"] for entry in content] == [list(b" ju"), list(b"mps")]
    assert [[top["token"] for top in entry["top_logprobs"]] for entry in content] == [
        ["token_id:40", "token_id:41"],
        ["token_id:42", "token_id:43"],
    ]
    parts = await logprobs_of("/v1/completions", **COMPLETION, logprobs=1, echo=True)
    ids = [*PROMPT_IDS, *OUTPUT_IDS]
    assert [token for part in parts for token in part["tokens"]] == [f"token_id:{token_id}" for token_id in ids]
    assert [top for part in parts for top in part["top_logprobs"]] == [
        None,
        {"token_id:30": -0.5, "token_id:21": -2.5},
        {"token_id:22": -0.25},
        {"token_id:33": -1.0, "token_id:23": -9999.0},
        {"token_id:40": -0.5},
        {"token_id:42": -0.75},
    ]
    assert [offset for part in parts for offset in part["text_offset"]] == [0, 3, 6, 9, 13, 16]  # in the text


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("includes", "continues"), [(False, False), (False, True), (True, False), (True, True)])
async def test_usage_in_a_stream(serve, http, frontend, path, body, n, includes, continues):
    """The four combinations (S04); running counts are those of the chunk's choice, the last chunk has the totals."""
    frontend.script = jumps
    options = {"include_usage": includes, "continuous_usage_stats": continues}
    events = await stream(http, await serve(), path, **body, n=n, stream_options=options)
    totals = [event for event in events if event["choices"] == []]
    assert len(totals) == includes
    if not includes:
        assert all("usage" not in event for event in events)
        return
    assert events.pop() is totals[0]
    usage = totals[0]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 2 * n, 5 + 2 * n)
    if not continues:
        assert [event["usage"] for event in events] == [None] * len(events)
        assert not frontend.streams[0].returns_prompt
        return
    for index in range(n):
        own = [event["usage"] for event in events if event["choices"][0]["index"] == index]
        assert [usage["completion_tokens"] for usage in own] == ([0, 1, 2] if "chat" in path else [1, 2])
        assert {usage["prompt_tokens"] for usage in own} == {len(PROMPT_IDS)}
        assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in own)
        assert all("prompt_token_ids" not in event for event in events)


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_stream_options_need_a_stream(serve, http, path, body):
    url = await serve()
    for fields in ({}, {"stream": False}, {"stream": None}):
        async with http.post(
            url + path, json={**body, **fields, "stream_options": {"include_usage": False}}
        ) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "stream_options"
    for options in (None, {}, {"include_usage": None, "continuous_usage_stats": None}):
        events = await stream(http, url, path, **body, stream_options=options)
        assert all("usage" not in event and event["choices"] for event in events)


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("reason", ["repetition", "abort", "length"])
async def test_reasons_pass(serve, http, frontend, path, body, reason):
    frontend.script = lambda stream: stream.push(delta("x", [1]), delta("x", [1], position=1, end=finish(reason)))
    url = await serve()
    assert (await post(http, url, path, **body))["choices"][0]["finish_reason"] == reason
    events = await stream(http, url, path, **body)
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + [reason]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_a_stop_token_is_named_by_its_id(serve, http, frontend, path, body):
    frontend.script = lambda stream: stream.push(delta("x", [1], end=finish("stop", stop_reason=7)))
    answer = await post(http, await serve(), path, **body, stop_token_ids=[7])
    assert answer["choices"][0]["stop_reason"] == 7
