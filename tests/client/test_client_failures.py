"""Every way in which a call can fail is a kind of RequestError; a stream that is not whole never ends silently."""

from __future__ import annotations

import asyncio
import socket

import pytest
from raw_server import answer, events, head, piece

from callboard.client import AsyncClient
from callboard.errors import (
    CallboardError,
    EngineFailure,
    InvalidRequest,
    MalformedAnswer,
    NotSupportedYet,
    Overloaded,
    RequestAtFault,
    RequestError,
    StreamCut,
    TimeLimitExceeded,
    Unauthorized,
    Unavailable,
    UnknownModel,
    Unreachable,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def calls(client):
    """Every way to ask: each must fail in the same way."""
    return [
        client.chat(MESSAGES).answer,
        client.complete("x").answer,
        lambda: client.chat_whole(MESSAGES),
        lambda: client.complete_whole("x"),
        lambda: client.tokenize("x"),
        lambda: client.detokenize([1]),
        client.models,
        client.version,
        client.metrics,
    ]


def body(message="m", **more):
    return {"error": {"message": message, "type": "t", "param": None, "code": None, **more}}


@pytest.mark.parametrize(
    ("status", "content", "kind"),
    [
        ("400 Bad Request", body(), InvalidRequest),
        ("400 Bad Request", body("n=2 is not supported yet", code="not_supported_yet", param="n"), NotSupportedYet),
        ("401 Unauthorized", body(), Unauthorized),
        ("403 Forbidden", body(), Unauthorized),
        ("404 Not Found", body(code="model_not_found", type="not_found_error"), UnknownModel),
        ("404 Not Found", body(code=404, type="NotFoundError"), UnknownModel),
        ("404 Not Found", body(code="unknown_path"), InvalidRequest),
        ("404 Not Found", b"<html>", InvalidRequest),
        ("405 Method Not Allowed", body(), InvalidRequest),
        ("408 Request Timeout", body(), InvalidRequest),
        ("413 Content Too Large", body(), InvalidRequest),
        ("422 Unprocessable", body(), InvalidRequest),
        ("429 Too Many Requests", body(), Overloaded),
        ("500 Internal Server Error", body(), EngineFailure),
        ("501 Not Implemented", b"", EngineFailure),
        ("502 Bad Gateway", b"<html>", EngineFailure),
        ("503 Service Unavailable", body(), Unavailable),
        ("504 Gateway Timeout", b"", EngineFailure),
        ("302 Found", b"", MalformedAnswer),
        ("204 No Content", b"", MalformedAnswer),
    ],
)
async def test_every_status_has_its_kind(raw, raw_client, status, content, kind):
    raw.answers = [answer(content, status, Retry_After="7", Location="/elsewhere")]
    for call in calls(raw_client):
        with pytest.raises(RequestError) as raised:
            await call()
        error = raised.value
        assert type(error) is kind
        if kind is not NotSupportedYet:
            assert error.status == int(status[:3]) and error.retry_after_s == 7
        assert error.message == (content["error"]["message"] if isinstance(content, dict) else error.message)
    assert [request.path for request in raw.requests if request.path == "/elsewhere"] == []


async def test_fields_of_an_error(raw, raw_client):
    raw.answers = [
        answer(body("too hot", param="temperature", code=7, type="invalid_request_error"), "400 Bad Request")
    ]
    with pytest.raises(InvalidRequest, match="too hot") as raised:
        await raw_client.complete_whole("x")
    assert (raised.value.param, raised.value.code, raised.value.type) == ("temperature", "7", "invalid_request_error")


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0), ("1.2", 2), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-3", None), ("inf", None)]
)
async def test_retry_after(raw, raw_client, value, seconds):
    raw.answers = [answer(body(), "429 Too Many Requests", Retry_After=value)]
    with pytest.raises(Overloaded) as raised:
        await raw_client.complete_whole("x")
    assert raised.value.retry_after_s == seconds


async def test_a_request_at_fault(raw, raw_client):
    raw.answers = [answer(body(), "500 Internal Server Error", x_should_retry="false")]
    with pytest.raises(RequestAtFault):
        await raw_client.complete_whole("x")


async def test_an_error_body_without_end_is_not_read_to_its_end(raw, raw_client):
    async def flood(request, writer):
        writer.write(head("500 Internal Server Error"))
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    raw.answers = [flood]
    with pytest.raises(EngineFailure):
        await raw_client.complete_whole("x")
    await raw.requests[0].gone.wait()


def test_all_kinds_have_one_base():
    kinds = (Unauthorized, Unreachable, StreamCut, MalformedAnswer, TimeLimitExceeded)
    assert all(issubclass(kind, RequestError) and issubclass(kind, CallboardError) for kind in kinds)
    assert issubclass(TimeLimitExceeded, TimeoutError)


DEEP = b'{"choices":' + b"[" * 100_000
PIECE, LAST = events(piece("a"), done=False), events(piece("b", "stop"), done=False)
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        (b"", StreamCut),
        (PIECE, StreamCut),
        (PIECE + LAST, StreamCut),  # all of the text, but nobody said that it is all
        (PIECE + DONE, StreamCut),
        (PIECE + b"data: [DONE]", StreamCut),
        (PIECE + LAST[:-2], StreamCut),
        (b": waiting\n\n", StreamCut),
        (PIECE + b"data: {\n\n", MalformedAnswer),
        (b"data: <html>\n\n", MalformedAnswer),
        (b'data: "text"\n\n', MalformedAnswer),
        (b'data: {"choices": {}}\n\n', MalformedAnswer),
        (b'data: {"choices": [{"index": "0"}]}\n\n', MalformedAnswer),
        (b"data: \xff\n\n", MalformedAnswer),
        (b"data: " + DEEP + b"\n\n", MalformedAnswer),
        (events(piece("a"), body("died", type="server_error")), EngineFailure),
        (events(piece("a"), body("ends", type="service_unavailable_error")), Unavailable),
        (events(body("wrong", type="invalid_request_error")), InvalidRequest),
        (events({"error": {}}), EngineFailure),
    ],
)
@pytest.mark.parametrize("is_aborted", [False, True], ids=["closed", "aborted"])
async def test_a_stream_that_is_not_whole(raw, raw_client, stream, kind, is_aborted):
    async def act(request, writer):
        writer.write(head() + stream)
        await writer.drain()
        if is_aborted:
            writer.transport.abort()
        else:
            writer.close()

    raw.answers = [act]
    with pytest.raises(RequestError if is_aborted else kind) as raised:
        await raw_client.complete("x").answer()
    if not is_aborted:  # an abort may throw away what was sent
        assert type(raised.value) is kind


async def test_deltas_before_a_cut_are_given(raw, raw_client):
    raw.answers = [head() + PIECE + PIECE]
    got = []
    with pytest.raises(StreamCut):
        async for delta in raw_client.complete("x"):
            got.append(delta.text)
    assert got == ["a", "a"]


async def test_a_chunked_stream_that_is_cut(raw, raw_client):
    raw.answers = [head(Transfer_Encoding="chunked") + b"%x\r\n%b\r\n" % (len(PIECE), PIECE)]
    with pytest.raises(StreamCut):
        await raw_client.complete("x").answer()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (answer(b"<html>"), MalformedAnswer),
        (answer([1]), MalformedAnswer),
        (answer(b""), MalformedAnswer),
        (answer(b"\xff"), MalformedAnswer),
        (answer(DEEP), MalformedAnswer),
        (head(Content_Length=100) + b"{", StreamCut),
        (b"", Unreachable),
        (b"no HTTP at all\r\n\r\n", Unreachable),
        (b"HTTP/1.1 200", Unreachable),
    ],
)
async def test_a_whole_answer_that_is_garbage(raw, raw_client, content, kind):
    async def act(request, writer):
        writer.write(content)
        writer.close()

    raw.answers = [act]
    for call in calls(raw_client)[2:-1]:  # metrics are no JSON
        with pytest.raises(RequestError) as raised:
            await call()
        assert type(raised.value) is kind


async def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with AsyncClient(f"http://127.0.0.1:{port}") as client:
        for call in calls(client):
            with pytest.raises(Unreachable):
                await call()
        assert await client.ready() is False


async def test_a_hundred_streams_cut_at_once(raw, raw_client):
    async def act(request, writer):
        writer.write(head() + PIECE)

    raw.answers = [act]

    async def one():
        stream = raw_client.complete("x")
        await anext(stream)
        with pytest.raises(StreamCut):
            await anext(stream)

    tasks = [asyncio.create_task(one()) for _ in range(100)]
    for _ in range(100):
        await raw.arrivals.get()
    await raw.close()
    await asyncio.gather(*tasks)
