"""The endpoints that generate nothing."""

from __future__ import annotations

import pytest
from raw_server import RawServer, answer, events, piece

import callboard
from callboard.actors.frontend_api import Health
from callboard.client import AsyncClient, ModelEntry, Tokens
from callboard.errors import MalformedAnswer

MESSAGES = [{"role": "user", "content": "hi"}]


async def test_tokenize(raw, raw_client):
    raw.answers = [answer({"count": 2, "max_model_len": 64, "tokens": [7, 8], "token_strs": None})]
    assert await raw_client.tokenize("hi", add_special_tokens=False) == Tokens([7, 8], 2, 64)
    assert (raw.requests[0].method, raw.requests[0].path) == ("POST", "/tokenize")
    assert raw.requests[0].json == {"prompt": "hi", "add_special_tokens": False}
    raw.answers = [answer({"count": 1, "max_model_len": 64, "tokens": [7], "token_strs": ["Ġhi"]})]
    tokens = await raw_client.tokenize(MESSAGES, add_generation_prompt=True, return_token_strs=True)
    assert tokens.token_strs == ["Ġhi"]
    assert raw.requests[1].json == {
        "messages": MESSAGES,
        "add_generation_prompt": True,
        "return_token_strs": True,
    }
    with pytest.raises(TypeError):
        await raw_client.tokenize("x", temperature=1)


async def test_detokenize(raw, raw_client):
    raw.answers = [answer({"prompt": "hi"})]
    assert await raw_client.detokenize((7, 8)) == "hi"
    assert (raw.requests[0].path, raw.requests[0].json) == ("/detokenize", {"tokens": [7, 8]})


async def test_a_real_server(serve, frontend):
    async with AsyncClient(await serve()) as client:
        (model,) = await client.models()
        assert isinstance(model, ModelEntry)
        assert (model.id, model.max_model_len, model.owned_by) == (frontend.model_name, 64, "callboard")
        assert await client.version() == callboard.__version__
        assert await client.ready()
        await client.complete_whole("x")
        metrics = await client.metrics()
        assert metrics['callboard:request_success_total{finished_reason="stop"}'] == 1.0
        assert metrics["callboard:num_requests_running"] == 0.0
        frontend.health_now = Health(True, False, "loading")
        assert not await client.ready()
        assert await client.health() == Health(True, False, "loading")


async def test_metrics_that_are_none(raw, raw_client):
    raw.answers = [answer(b'# HELP a b\n# TYPE a gauge\na 1.5\n\nb{c="d e"} NaN\nb_total 3e2\n')]
    metrics = await raw_client.metrics()
    assert (metrics["a"], metrics["b_total"], len(metrics)) == (1.5, 300.0, 3)
    assert metrics['b{c="d e"}'] != metrics['b{c="d e"}']
    raw.answers = [answer(b"<html>")]
    with pytest.raises(MalformedAnswer):
        await raw_client.metrics()


async def test_a_socket_in_the_file_system(tmp_path):
    server = RawServer()
    server.answers = [answer(events(piece("a", "stop")))]
    await server.start(str(tmp_path / "socket"))
    async with AsyncClient(f"unix:{tmp_path / 'socket'}") as client:
        assert (await client.complete("x").answer()).text == "a"
    await server.close()
    assert server.requests[0].path == "/v1/completions"
