"""Sessions from Python, against a real server over a frontend without an engine."""

from __future__ import annotations

import asyncio

import pytest
from fake_frontend import delta, finish
from raw_server import events, head, piece

from callboard.client import AsyncClient
from callboard.errors import EngineFailure, InvalidRequest, Overloaded, StreamCut
from callboard.mailbox.messages.requests import SessionInput, TextPrompt, TokenPrompt


@pytest.fixture
async def client(serve):
    async with AsyncClient(await serve()) as made:
        yield made


@pytest.fixture
def conversation(frontend):
    """Each input is answered with a turn: the session's prompt with two deltas, the last input with the end."""
    frontend.script = lambda stream: stream.push(
        delta("one", [1]), delta(" two", [2, 3], pause=finish("length", stop_reason="x"))
    )
    add_input = frontend.add_input

    def answer(request_id, given):
        add_input(request_id, given)
        is_last = given is None or given.is_last
        frontend.streams[0].push(delta("more", [4], **{"end" if is_last else "pause": finish("stop")}))

    frontend.add_input = answer
    return frontend


async def turn_of(session):
    return [delta async for delta in session.turn()]


async def test_turns(client, conversation):
    async with client.session("hi", max_tokens=5, stop="x") as session:
        assert session.session_id == conversation.streams[0].request_id
        first, last = await turn_of(session)
        assert (first.text, first.token_ids, first.finish_reason, first.usage) == ("one", [1], None, None)
        assert (last.text, last.finish_reason, last.stop_reason, last.is_paused) == (" two", "length", "x", True)
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 3)
        await session.send("then")
        (last,) = await turn_of(session)
        assert last.is_paused and not session.has_ended
        await session.send([7, 8], last=True)
        (last,) = await turn_of(session)
        assert (last.text, last.finish_reason, last.is_paused) == ("more", "stop", False)
        assert last.usage.completion_tokens == 3
        assert session.has_ended and await turn_of(session) == []
    assert conversation.streams[0].sampling.max_tokens == 5
    assert [given for _, given in conversation.inputs] == [
        SessionInput(TextPrompt("then")),
        SessionInput(TokenPrompt([7, 8]), True),
    ]


async def test_finish(client, conversation):
    async with client.session([1, 2]) as session:
        await turn_of(session)
        await session.finish()
        assert [delta.finish_reason for delta in await turn_of(session)] == ["stop"]
    assert conversation.inputs[-1][1] is None


async def test_a_turn_that_is_left_goes_on_with_the_next_call(client, conversation):
    async with client.session("hi") as session:
        async for given in session.turn():
            assert given.text == "one"
            break
        assert [given.text for given in await turn_of(session)] == [" two"]


async def test_leaving_the_block_aborts_it(client, conversation):
    async with client.session("hi") as session:
        await turn_of(session)
    async with asyncio.timeout(30):
        await conversation.streams[0].closed.wait()


@pytest.mark.parametrize(
    "error", [InvalidRequest("too long", param="prompt"), Overloaded("full", retry_after_s=3), EngineFailure("died")]
)
async def test_an_error_before_the_first_token_is_raised_as_the_block_is_entered(client, frontend, error):
    frontend.script = lambda stream: stream.push(error)
    with pytest.raises(type(error), match=error.message):
        async with client.session("hi"):
            raise AssertionError("it has not begun")


async def test_an_error_later_is_raised_by_the_turn(client, frontend):
    error = InvalidRequest("too much", param="prompt", code="context_length_exceeded")
    frontend.script = lambda stream: stream.push(delta("a", [1], pause=finish()), error)
    async with client.session("hi") as session:
        await turn_of(session)
        with pytest.raises(InvalidRequest) as raised:
            await turn_of(session)
        assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("refusal", "kind", "status"),
    [
        (InvalidRequest("last", code="session_complete", status=409), InvalidRequest, 409),
        (InvalidRequest("gone", code="session_not_found", status=404), InvalidRequest, 409),
        (Overloaded("many", retry_after_s=1), Overloaded, 429),
    ],
)
async def test_input_that_is_refused(client, conversation, refusal, kind, status):
    def refuse(request_id, given):
        raise refusal

    conversation.add_input = refuse
    async with client.session("hi") as session:
        with pytest.raises(kind) as raised:
            await session.send("more")
        assert raised.value.status == status


async def test_input_for_no_session(client):
    session = client.session("hi")
    session.session_id = "none/of that name"
    with pytest.raises(InvalidRequest) as raised:
        await session.send("more")
    assert (raised.value.status, raised.value.code) == (404, "session_not_found")


async def test_what_the_server_cannot_do_is_told(client, frontend):
    with pytest.raises(InvalidRequest, match="n has to be 1"):
        async with client.session("hi", n=2):
            raise AssertionError("it has not begun")
    with pytest.raises(TypeError, match="max_tokens"):
        client.session("hi", max_token=3)


async def test_a_stream_that_breaks_off_at_a_pause(raw, raw_client):
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    raw.answers = [head() + events({**piece("a", "stop"), "paused": True, "usage": usage}, done=False)]
    async with raw_client.session("hi") as session:
        (last,) = await turn_of(session)
        assert last.is_paused and last.usage.total_tokens == 2
        with pytest.raises(StreamCut):
            await turn_of(session)
