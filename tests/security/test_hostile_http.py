"""Whatever bytes come over HTTP: an answer of a known kind, in the API's form; never a 500, and the server lives on."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import aiohttp
import hostile_bytes
import pytest
from fake_frontend import MODEL, FakeFrontend, serve_fake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

STATUSES = {200, 400, 401, 404, 405, 413, 415, 422, 429}
PATHS = ("/v1/chat/completions", "/v1/completions")
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    PATHS[0]: {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "x", "tool_call_id": "c"},
        ],
        "stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 3, "logprobs": True,
        "top_logprobs": 2, "stop": ["x"], "seed": 1, "temperature": 0.5, "top_p": 0.9, "n": 1, "user": "u",
        "response_format": {"type": "text"}, "tools": [], "tool_choice": "auto", "logit_bias": {}, "cache_salt": "s",
    },
    PATHS[1]: {
        "model": MODEL, "prompt": ["a"], "max_tokens": 3, "logprobs": 2, "echo": False, "stop": "x", "stream": False,
        "top_k": 5, "min_p": 0.1, "ignore_eos": True, "suffix": None, "best_of": 1, "return_token_ids": True,
    },
}  # fmt: skip
BUDGETS = [pytest.param(1, id="short"), pytest.param(80, id="long", marks=pytest.mark.nightly)]

bodies = st.one_of(
    *(
        st.tuples(st.just(path), hostile_bytes.altered(body).map(lambda changed: json.dumps(changed).encode()))
        for path, body in BODIES.items()
    ),
    *(
        st.tuples(st.just(path), hostile_bytes.damaged(json.dumps(body).encode(), 10_000))
        for path, body in BODIES.items()
    ),
    st.tuples(st.sampled_from(PATHS), st.binary(max_size=200)),
)
headers = st.dictionaries(
    st.sampled_from(["Content-Type", "Content-Encoding", "Authorization", "x-request-id", "Accept", "X-Other"]),
    st.one_of(
        st.sampled_from(["application/json", "text/plain; charset=utf-16", "gzip", "deflate", "br", "identity", "x"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30).map(str.strip),
    ),
    max_size=2,
)


async def check(session: aiohttp.ClientSession, method: str, url: str, **sent: Any) -> int:
    async with session.request(method, url, **sent) as response:
        body = await response.read()
        assert response.status in STATUSES, (sent, response.status, body)
        if response.status != 200:
            error = json.loads(body)["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"] and len(body) < 16_000
        assert "Traceback" not in body.decode("utf-8", "replace")
        return response.status


def drawn(strategy: st.SearchStrategy[Any], examples: int) -> list[Any]:
    """Examples for a loop that awaits, which a test under `given` cannot."""
    found: list[Any] = []

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(example: Any) -> None:
        found.append(example)

    draw()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
async def test_bodies(budget: int) -> None:
    server, url = await serve_fake(FakeFrontend())
    seen = set()
    try:
        # A connection each: after a body that cannot be unpacked the server closes the one that it came on.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            for (path, body), extra in drawn(st.tuples(bodies, headers), 200 * budget):
                seen.add(await check(session, "POST", url + path, data=body, headers=extra))
    finally:
        await server.close()
    assert {200, 400} <= seen


async def test_methods_and_paths() -> None:
    server, url = await serve_fake(FakeFrontend())
    paths = ["/", "/v1", "/v1/models/%00", "/v1/models/a%2Fb", "/v1/none?x=%ff", "/../etc/passwd", "/v1/" + "x" * 5000]
    try:
        async with aiohttp.ClientSession() as session:
            for path in (*paths, *PATHS, "/v1/models", "/health", "/metrics"):
                for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
                    await check(session, method, url + path)
    finally:
        await server.close()


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_small_body_that_unpacks_to_a_large_one(encoding: str, pack: Any) -> None:
    """16 MiB of spaces are 16 KiB packed; the limit is for what comes out."""
    server, url = await serve_fake(FakeFrontend(), max_request_bytes=1 << 18)
    data = pack(b" " * (16 << 20))
    assert len(data) < 1 << 16
    try:
        async with aiohttp.ClientSession() as session:
            sent = {"data": data, "headers": {"Content-Encoding": encoding}}
            assert await check(session, "POST", url + PATHS[0], **sent) == 413
    finally:
        await server.close()


RAW = [
    b"", b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET", b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"prompt\":",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 50_000,
    b"GET / HTTP/1.1\r\nHost: x\r\nA" + b"\xff" * 50 + b": b\r\n\r\n",
]  # fmt: skip


async def test_what_is_no_http() -> None:
    server, url = await serve_fake(FakeFrontend())
    port = int(url.rpartition(":")[2])
    try:
        for data in (*RAW, *drawn(st.binary(max_size=300), 30)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(data)
                writer.write_eof()
                answer = await reader.read(1 << 20)
                assert b"Traceback" not in answer
                assert not answer.startswith(b"HTTP/1.1 5"), (data, answer)
            except ConnectionError:
                pass
            finally:
                writer.close()
        async with aiohttp.ClientSession() as session:
            sent = {"json": {"prompt": "a", "max_tokens": 2}}
            assert await check(session, "POST", url + PATHS[1], **sent) == 200
    finally:
        await server.close()
