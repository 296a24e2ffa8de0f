"""The endpoints that only look, and what every answer has: the request's id, a key where one is needed, Retry-After."""

from __future__ import annotations

import asyncio
import re
import time

import openai
import pytest
from fake_frontend import MAX_MODEL_LEN, MODEL

from callboard.actors.frontend_api import Health
from callboard.errors import Overloaded, RequestError, Unavailable

MESSAGES = [{"role": "user", "content": "hi"}]
OPEN = ("/health", "/ping", "/ready", "/startup", "/load", "/metrics", "/version", "/openapi.json")
GUARDED = ("/v1/models", f"/v1/models/{MODEL}")
POSTS = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "a"},
    "/tokenize": {"prompt": "a"},
    "/v1/tokenize": {"messages": MESSAGES},
    "/detokenize": {"tokens": [1]},
    "/v1/detokenize": {"tokens": [1]},
}
MADE_HERE = re.compile("[0-9a-f]{32}")


async def get(http, url):
    async with http.get(url) as response:
        return response.status, await response.json()


async def test_models(serve, http):
    """As vLLM lists them."""
    url = await serve()
    status, listed = await get(http, url + "/v1/models")
    (card,) = listed.pop("data")
    assert (status, listed) == (200, {"object": "list"})
    assert abs(card.pop("created") - time.time()) < 3600
    assert card == {
        "id": MODEL, "object": "model", "owned_by": "callboard", "root": MODEL, "parent": None,
        "max_model_len": MAX_MODEL_LEN,
    }  # fmt: skip
    status, one = await get(http, f"{url}/v1/models/{MODEL}")
    del one["created"]
    assert (status, one) == (200, card)
    for other in ("other", f"{MODEL}/more", f"{MODEL}%00"):
        status, answer = await get(http, f"{url}/v1/models/{other}")
        assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_ping_is_health(serve, http, frontend):
    url = await serve()
    for health, status in ((Health(True, True, ""), 200), (Health(False, False, "a step hangs"), 503)):
        frontend.health_now = health
        answers = [await get(http, url + path) for path in ("/ping", "/health")]
        assert answers[0] == answers[1] and answers[0][0] == status


async def test_load_goes_up_and_down(serve, http, frontend):
    """0 -> 1 -> 0 around one request, however many choices it has."""
    frontend.script = lambda stream: None
    url = await serve()
    assert await get(http, url + "/load") == (200, {"server_load": 0})
    task = asyncio.create_task(http.post(url + "/v1/completions", json={"prompt": "a", "n": 3}))
    stream = await frontend.arrivals.get()
    assert await get(http, url + "/load") == (200, {"server_load": 1})
    stream.push(RequestError("no"))
    async with await task as response:
        assert response.status == 500
    assert await get(http, url + "/load") == (200, {"server_load": 0})


# X-Request-Id


async def test_every_endpoint_gives_the_requests_id_back(serve, http):
    url = await serve()
    for number, path in enumerate((*OPEN, *GUARDED, "/v1/models/other", "/nothing", "/v1/nothing")):
        async with http.get(url + path, headers={"X-Request-Id": f"get-{number}"}) as response:
            assert response.headers.getall("X-Request-Id") == [f"get-{number}"]
        async with http.get(url + path) as response:
            assert MADE_HERE.fullmatch(response.headers["X-Request-Id"])
    for path, body in POSTS.items():
        for good in (body, {**body, "stream": True}, {"model": 1}):
            async with http.post(url + path, json=good, headers={"X-Request-Id": "post"}) as response:
                assert response.headers.getall("X-Request-Id") == ["post"]
        async with http.put(url + path, json=body, headers={"X-Request-Id": "put"}) as response:
            assert (response.status, response.headers["X-Request-Id"]) == (405, "put")


HOSTILE = [b"", b" ", b"a b", b"x" * 129, b"caf\xc3\xa9", b"\xff\xfe", b"a\tb", b"a\x7fb"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("path", ["/health", "/v1/completions"])
async def test_a_hostile_id_is_replaced(serve, value, path):
    """On the wire, where no client library cleans it."""
    host, port = (await serve()).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"prompt": "a"}' if path.startswith("/v1") else b""
    writer.write(
        b"%s %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
        % (b"POST" if body else b"GET", path.encode(), value, len(body), body)
    )
    answer = await reader.read()
    writer.close()
    head, _, _ = answer.partition(b"\r\n\r\n")
    ids = re.findall(rb"(?im)^x-request-id: (.*?)\r?$", head + b"\r\n")
    assert int(head.split()[1]) == (400 if b"\x7f" in value else 200)
    assert len(ids) == 1 and MADE_HERE.fullmatch(ids[0].decode())
    assert value.strip() == b"" or value not in head


async def test_an_id_cannot_end_the_header(serve):
    """A line feed in a header begins the next one; the server's answer has none of it."""
    host, port = (await serve()).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\nSet-Cookie: b\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    head, _, _ = answer.partition(b"\r\n\r\n")
    assert b"set-cookie" not in head.lower()


async def test_two_ids(serve, http):
    """The first counts, as everywhere where a header may come once."""
    headers = [("X-Request-Id", "one"), ("X-Request-Id", "two")]
    async with http.get(await serve() + "/health", headers=headers) as response:
        assert response.headers.getall("X-Request-Id") == ["one"]


# Retry-After and keys


@pytest.mark.parametrize("path", POSTS)
async def test_retry_after(serve, http, frontend, path):
    """Of a 429 and a 503 always, in whole seconds of at least 1; of nothing else."""
    url = await serve()
    for error, status, expected in (
        (Overloaded("full", retry_after_s=7), 429, "7"),
        (Overloaded("full", retry_after_s=0), 429, "1"),
        (Overloaded("full"), 429, "1"),
        (Unavailable("draining"), 503, "1"),
        (Unavailable("starting", retry_after_s=20), 503, "20"),
        (RequestError("broken"), 500, None),
    ):
        frontend.refusal = error
        async with http.post(url + path, json=POSTS[path]) as response:
            assert (response.status, response.headers.get("Retry-After")) == (status, expected)


async def test_keys_are_asked_for_where_the_engine_works(serve, http, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    url = await serve(api_keys_file=str(tmp_path / "keys"))
    right, wrong = {"Authorization": "Bearer secret"}, {"Authorization": "Bearer other"}
    for path in OPEN:
        async with http.get(url + path) as response:
            assert response.status == 200, path
    for path in GUARDED:
        for headers, status in ((right, 200), (wrong, 401), ({}, 401)):
            async with http.get(url + path, headers=headers) as response:
                assert response.status == status
    for path, body in POSTS.items():
        for headers, status in ((right, 200), (wrong, 401), ({}, 401)):
            async with http.post(url + path, json=body, headers=headers) as response:
                assert response.status == status, path
                if status == 401:
                    error = (await response.json())["error"]
                    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    async with http.post(url + "/v1//completions", json={"prompt": "a"}) as response:
        assert response.status == 401


# The openai package


@pytest.fixture
async def sdk(serve):
    async with openai.AsyncOpenAI(base_url=await serve() + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_models_of_the_sdk(sdk):
    (listed,) = [model async for model in sdk.models.list()]
    one = await sdk.models.retrieve(MODEL)
    assert listed == one
    assert (one.id, one.object, one.owned_by) == (MODEL, "model", "callboard")
    with pytest.raises(openai.NotFoundError) as unknown:
        await sdk.models.retrieve("other")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")


async def test_raw_and_streaming_responses_of_the_sdk(sdk):
    headers = {"X-Request-Id": "mine"}
    raw = await sdk.models.with_raw_response.list(extra_headers=headers)
    assert (raw.status_code, raw.headers["x-request-id"], raw.request_id) == (200, "mine", "mine")
    assert raw.parse().data[0].id == MODEL
    async with sdk.models.with_streaming_response.retrieve(MODEL, extra_headers=headers) as response:
        assert response.headers["x-request-id"] == "mine"
        assert (await response.parse()).id == MODEL
    answer = await sdk.completions.create(model=MODEL, prompt="a")
    assert MADE_HERE.fullmatch(answer._request_id)


async def test_what_is_not_offered_is_a_404_of_the_sdk(sdk):
    """With a body of the usual shape, which names the path."""
    for asking, path in (
        (sdk.responses.create(model=MODEL, input="hi"), "/v1/responses"),
        (sdk.responses.retrieve("resp_1"), "/v1/responses/resp_1"),
        (sdk.embeddings.create(model=MODEL, input="x"), "/v1/embeddings"),
        (sdk.moderations.create(input="x"), "/v1/moderations"),
        (sdk.files.list(), "/v1/files"),
        (sdk.images.generate(prompt="x"), "/v1/images/generations"),
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            await asking
        assert path in missing.value.message
        assert (missing.value.type, missing.value.code) == ("invalid_request_error", "unknown_path")


async def test_a_wrong_content_type_is_a_status_error_of_the_sdk(sdk):
    with pytest.raises(openai.APIStatusError) as wrong:
        await sdk.chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
    assert (wrong.value.status_code, wrong.value.code) == (415, "unsupported_media_type")


async def test_keys_of_the_sdk(serve, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    url = await serve(api_keys_file=str(tmp_path / "keys")) + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="secret", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.chat.completions.create(model=MODEL, messages=MESSAGES)).choices
    async with openai.AsyncOpenAI(base_url=url, api_key="other", max_retries=0) as client:
        for asking in (
            client.models.list(),
            client.models.retrieve(MODEL),
            client.chat.completions.create(model=MODEL, messages=MESSAGES),
            client.completions.create(model=MODEL, prompt="a", stream=True),
            client.embeddings.create(model=MODEL, input="x"),
        ):
            with pytest.raises(openai.AuthenticationError) as denied:
                await asking
            assert denied.value.code == "invalid_api_key"
            assert "other" not in denied.value.message
