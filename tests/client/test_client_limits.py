"""Time limits, repetitions, and closing early: what the server sees of each."""

from __future__ import annotations

import asyncio
import errno
import socket

import aiohttp
import pytest
from raw_server import answer, events, head, piece

from callboard.client import NO_LIMITS, AsyncClient, Timeouts
from callboard.client.retries import Retries
from callboard.errors import (
    EngineFailure,
    InvalidRequest,
    Overloaded,
    RequestError,
    StreamCut,
    TimeLimitExceeded,
    Unavailable,
    Unreachable,
)

PIECE = events(piece("a"), done=False)
WHOLE = answer(events(piece("a", "stop")))
REFUSAL = {"error": {"message": "m", "type": "t", "param": None, "code": None}}


async def say_nothing(request, writer):
    """Leaves the connection open."""


async def begin(request, writer):
    writer.write(head() + PIECE)


async def comment(request, writer):
    writer.write(head())
    while not request.gone.is_set():
        writer.write(b": waiting\n\n")
        await writer.drain()
        await asyncio.sleep(0.01)  # between two comments


def limited(raw, **limits):
    return AsyncClient(raw.url, timeouts=Timeouts(**limits))


@pytest.mark.parametrize("act", [say_nothing, begin])
async def test_silence_of_a_stream(raw, act):
    raw.answers = [act]
    async with limited(raw, chunk_s=0.05) as client:
        with pytest.raises(TimeLimitExceeded, match=r"sent nothing for 0\.05 s \(chunk_s\)") as raised:
            await client.complete("x").answer()
    assert (raised.value.limit, raised.value.status) == ("chunk_s", 504)
    await raw.requests[0].gone.wait()


async def test_silence_before_a_whole_answer_is_limited_apart(raw):
    raw.answers = [say_nothing]
    async with limited(raw, chunk_s=0.01, answer_s=0.05) as client:
        with pytest.raises(TimeLimitExceeded, match=r"\(answer_s\)") as raised:
            await client.complete_whole("x")
        assert raised.value.limit == "answer_s"
        await raw.requests[0].gone.wait()
        for call in (client.models, client.metrics, client.health, lambda: client.tokenize("x")):
            with pytest.raises(TimeLimitExceeded, match=r"\(chunk_s\)"):
                await call()


@pytest.mark.parametrize("act", [say_nothing, begin, comment])
async def test_the_whole_of_a_call(raw, act):
    raw.answers = [act]
    async with AsyncClient(raw.url) as client:
        with pytest.raises(TimeLimitExceeded, match=r"\(total_s\)") as raised:
            await client.complete("x", timeouts=Timeouts(total_s=0.1)).answer()
        assert raised.value.limit == "total_s"
        await raw.requests[0].gone.wait()
        raw.answers = [WHOLE]
        assert (await client.complete("x").answer()).text == "a"  # the client goes on


async def test_the_total_passes_while_the_caller_is_busy(raw):
    """The limit raises in the client's next step, never inside the caller's own code."""
    raw.answers = [begin]
    async with AsyncClient(raw.url) as client:
        stream = client.complete("x", timeouts=Timeouts(total_s=0.05))
        await anext(stream)
        await asyncio.sleep(0.2)  # longer than the limit: nothing is raised here
        with pytest.raises(TimeLimitExceeded, match="total_s"):
            await anext(stream)


async def test_connecting(monkeypatch):
    """A host that drops packets, as far as a socket shows it: the connection stays under way."""

    async def never(*args, **kwargs):
        await asyncio.Event().wait()

    monkeypatch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", never)
    async with AsyncClient("http://127.0.0.1:9", timeouts=Timeouts(connect_s=0.05)) as client:
        with pytest.raises(TimeLimitExceeded, match=r"no connection .* within 0\.05 s \(connect_s\)"):
            await client.complete("x").answer()
        with pytest.raises(TimeLimitExceeded, match="total_s"):
            await client.complete("x", timeouts=Timeouts(total_s=0.05)).answer()


async def test_a_slow_server_within_the_limits(raw):
    async def slowly(request, writer):
        for byte in WHOLE:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    raw.answers = [slowly]
    async with limited(raw, chunk_s=60) as client:
        assert (await client.complete("x").answer()).text == "a"
    raw.answers = [WHOLE]
    async with AsyncClient(raw.url, timeouts=NO_LIMITS) as client:
        assert (await client.complete("x").answer()).text == "a"


# Repetitions


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that the client made, none of which takes time."""
    made = []
    sleep = asyncio.sleep

    async def note(seconds):
        made.append(seconds)
        await sleep(0)

    monkeypatch.setattr("callboard.client.transport.asyncio.sleep", note)
    return made


STATUSES = ["400 X", "401 X", "404 X", "408 X", "413 X", "429 X", "500 X", "502 X", "503 X", "504 X"]


@pytest.mark.parametrize("status", STATUSES)
async def test_nothing_is_repeated_by_default(raw, raw_client, status):
    raw.answers = [answer(REFUSAL, status, Retry_After="0")]
    for call in (raw_client.complete("x").answer, lambda: raw_client.complete_whole("x"), raw_client.models):
        num_before = len(raw.requests)
        with pytest.raises(RequestError):
            await call()
        assert len(raw.requests) == num_before + 1


@pytest.mark.parametrize("status", STATUSES)
async def test_only_what_was_not_begun_is_repeated(raw, pauses, status):
    raw.answers = [answer(REFUSAL, status)]
    async with AsyncClient(raw.url, max_retries=2) as client:
        with pytest.raises(RequestError):
            await client.complete_whole("x")
    is_safe = status in ("429 X", "503 X")
    assert len(raw.requests) == (3 if is_safe else 1)
    assert len({str(request.json) for request in raw.requests}) == 1
    assert len(pauses) == (2 if is_safe else 0)
    if is_safe:
        assert 0.25 <= pauses[0] <= 0.5 and 0.5 <= pauses[1] <= 1.0


async def test_retry_after_is_respected(raw, pauses):
    raw.answers = [answer(REFUSAL, "429 X", Retry_After="7"), answer(REFUSAL, "503 X", Retry_After="3"), WHOLE]
    async with AsyncClient(raw.url, max_retries=5) as client:
        assert (await client.complete("x").answer()).text == "a"
    assert 7 <= pauses[0] <= 7.25 and 3 <= pauses[1] <= 3.5
    assert len(raw.requests) == 3


async def test_a_server_that_asks_for_too_long_is_not_waited_for(raw, pauses):
    raw.answers = [answer(REFUSAL, "429 X", Retry_After="3600")]
    async with AsyncClient(raw.url, max_retries=5) as client:
        with pytest.raises(Overloaded) as raised:
            await client.complete_whole("x")
    assert raised.value.retry_after_s == 3600 and pauses == [] and len(raw.requests) == 1


async def test_x_should_retry_false_is_obeyed(raw, pauses):
    raw.answers = [answer(REFUSAL, "503 X", x_should_retry="false")]
    async with AsyncClient(raw.url, max_retries=5) as client:
        with pytest.raises(Unavailable):
            await client.complete_whole("x")
    assert len(raw.requests) == 1 and pauses == []


async def test_the_total_includes_the_pauses(raw, pauses):
    raw.answers = [answer(REFUSAL, "429 X", Retry_After="50")]
    async with AsyncClient(raw.url, max_retries=5, timeouts=Timeouts(total_s=40)) as client:
        with pytest.raises(Overloaded):
            await client.complete_whole("x")
    assert len(raw.requests) == 1 and pauses == []


async def test_a_refused_connection_is_tried_again(raw, pauses, monkeypatch):
    """Nobody listens twice, then somebody does."""
    connect = aiohttp.TCPConnector._create_connection
    refusals = iter([True, True])

    async def refused(self, request, traces, timeout):
        if next(refusals, False):
            raise aiohttp.ClientConnectorError(request.connection_key, OSError(errno.ECONNREFUSED, "refused"))
        return await connect(self, request, traces, timeout)

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", refused)
    raw.answers = [WHOLE]
    async with AsyncClient(raw.url, max_retries=2) as client:
        assert (await client.complete("x").answer()).text == "a"
    assert len(pauses) == 2 and len(raw.requests) == 1


async def test_a_refused_connection_is_an_error_in_the_end(pauses):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with AsyncClient(f"http://127.0.0.1:{port}", max_retries=3) as client:
        with pytest.raises(Unreachable):
            await client.complete_whole("x")
    assert len(pauses) == 3


async def test_what_was_sent_is_never_sent_again(raw, pauses):
    """The server took the request and went: it may have been begun."""

    async def go(request, writer):
        writer.close()

    async def go_later(request, writer):
        writer.write(head() + PIECE)
        writer.close()

    async with AsyncClient(raw.url, max_retries=3) as client:
        raw.answers = [go]
        with pytest.raises(Unreachable):
            await client.complete_whole("x")
        assert len(raw.requests) == 1
        raw.answers = [go_later]
        with pytest.raises(StreamCut):
            await client.complete("x").answer()
        raw.answers = [answer(events(piece("a"), {"error": {"type": "rate_limit_error"}}))]
        with pytest.raises(Overloaded):
            await client.complete("x").answer()
    assert len(raw.requests) == 3 and pauses == []


def test_the_backoff_doubles_to_a_limit():
    retries = Retries(max_retries=10, backoff_s=0.5)
    for attempt, longest in enumerate([0.5, 1, 2, 4, 8, 8, 8]):
        pauses = [retries.pause_s(attempt, None) for _ in range(200)]
        assert all(longest / 2 <= pause <= longest for pause in pauses) and len(set(pauses)) > 100
    assert retries.pause_s(10, None) is None


# Closing early


@pytest.mark.parametrize("whole", [False, True])
async def test_cancellation_closes_the_connection(raw, raw_client, whole):
    raw.answers = [say_nothing]
    call = raw_client.complete_whole("x") if whole else raw_client.complete("x").answer()
    task = asyncio.create_task(call)
    request = await raw.arrivals.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await request.gone.wait()


async def test_the_end_of_a_block_closes_the_connection(raw, raw_client):
    raw.answers = [begin]
    async with raw_client.complete("x") as stream:
        assert (await anext(stream)).text == "a"
    await raw.requests[0].gone.wait()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()  # once more does nothing


async def test_a_stream_that_is_never_read_is_never_sent(raw, raw_client):
    raw.answers = [begin]
    stream = raw_client.complete("x")
    await stream.aclose()
    assert raw.requests == []


async def test_an_error_in_the_callers_loop_closes_the_connection(raw, raw_client):
    raw.answers = [begin]
    with pytest.raises(ZeroDivisionError):
        async with raw_client.complete("x") as stream:
            async for _ in stream:
                raise ZeroDivisionError
    await raw.requests[0].gone.wait()


async def test_a_client_that_was_closed_can_be_used_again(raw):
    raw.answers = [WHOLE]
    client = AsyncClient(raw.url)
    for _ in range(2):
        assert (await client.complete("x").answer()).text == "a"
        await client.close()
    with pytest.raises(InvalidRequest):
        raw.answers = [answer(REFUSAL, "400 X")]
        await client.complete_whole("x")
    await client.close()
    assert issubclass(StreamCut, EngineFailure)
