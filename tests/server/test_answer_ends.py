"""An answer ends with the writing of its last bytes: no turn of the loop lies between them and the count."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from fake_frontend import delta, finish

from callboard.server import event_writer

PATHS = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/tokenize": {"prompt": "a"},
}


@pytest.mark.parametrize(
    ("path", "streams"),
    [(path, streams) for path in PATHS for streams in (False, True) if not (streams and path == "/tokenize")],
)
async def test_nothing_waits_behind_the_last_byte(serve, http, monkeypatch, path, streams):
    """A client that has read everything and closes its connection could else be counted as one that left early."""

    async def wait_taken(request, writing, stall_s):
        writing.close()
        raise AssertionError("a short answer waits for nobody")

    monkeypatch.setattr(event_writer, "wait_taken", wait_taken)
    url = await serve()
    async with http.post(url + path, json={**PATHS[path], "stream": streams}) as response:
        assert response.status == 200
        await response.read()
    async with http.get(url + "/metrics") as response:
        text = await response.text()
    assert f'callboard:http_requests_total{{handler="{path}",method="POST",status="200"}} 1.0' in text


async def test_a_long_answer_waits_for_its_client(serve, frontend, monkeypatch):
    """What does not fit into the buffers goes the way that has a limit on a client that takes nothing."""
    waited = asyncio.Event()
    wait_taken = event_writer.wait_taken

    async def spy(request, writing, stall_s):
        waited.set()
        await wait_taken(request, writing, stall_s)

    monkeypatch.setattr(event_writer, "wait_taken", spy)
    long = "x" * 500_000
    frontend.script = lambda stream: stream.push(delta(long, [1], end=finish()))
    async with aiohttp.ClientSession() as http, http.post(await serve() + "/v1/completions", json={"prompt": "a"}) as r:
        assert (await r.json())["choices"][0]["text"] == long
    assert waited.is_set()
