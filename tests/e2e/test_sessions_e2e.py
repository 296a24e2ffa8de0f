"""Streaming sessions through a whole engine: what they say is the null device's rule over all that stands before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest

from callboard.bench.overlap import read_counter
from callboard.bench.server_process import ServerProcess
from callboard.client import AsyncClient, Session
from callboard.errors import InvalidRequest
from callboard.tests.e2e.null_engine import ALL_APART, UNLIMITED, held, null_server, until_idle

pytestmark = pytest.mark.slow

BLOCK = 16
PROMPT = [300, 301, 7, 8]
INPUTS = [[310, 311, 312], [320], [330, 331]]


@pytest.fixture(scope="module")
def server(null_model):
    with null_server(
        null_model,
        *UNLIMITED,
        f"kv_cache.block_size={BLOCK}",
        "server.session_idle_s=3600",
        topology=ALL_APART,
    ) as started:
        yield started


@pytest.fixture
async def client(server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as made:
        yield made


def turns_of(oracle, lengths: list[int], seed: int, inputs=INPUTS) -> list[list[int]]:
    """The tokens of each turn: those that a request would get whose prompt is all that stands before them."""
    context, turns = list(PROMPT), []
    for index, length in enumerate(lengths):
        turns.append(oracle.tokens(context, length, seed))
        context += turns[-1] + (inputs[index] if index < len(inputs) else [])
    return turns


def open_session(client: AsyncClient, seed: int, num_tokens: int, **more: object) -> Session:
    return client.session(PROMPT, max_tokens=num_tokens, temperature=1.0, seed=seed, ignore_eos=True, **more)


async def read_turn(session: Session):
    """(token ids, text, last delta) of what is left of the present turn."""
    deltas = [delta async for delta in session.turn()]
    return [i for delta in deltas for i in delta.token_ids], "".join(delta.text for delta in deltas), deltas[-1]


async def test_three_turns_are_the_answer_to_all_that_stands_before(client, server, oracle):
    expected = turns_of(oracle, [40, 40, 40], seed=5)
    async with open_session(client, 5, 40) as session:
        num_context = len(PROMPT)
        for index, ids in enumerate(expected):
            got, text, last = await read_turn(session)
            assert got == ids
            assert text == oracle.text(ids)
            assert (last.finish_reason, last.is_paused) == ("length", index < 2)
            assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (num_context, 40)
            if index:  # all full blocks of the turns before were found again
                num_computed = num_context - len(INPUTS[index - 1]) - 1  # nobody has looked at its last token
                assert last.usage.prompt_tokens_details.cached_tokens == num_computed // BLOCK * BLOCK
            num_context += 40 + len(INPUTS[index])
            if index < 2:
                await until_idle(server.url)  # a paused session holds no row and no block
                await session.send(INPUTS[index], last=index == 1)
        assert session.has_ended
        assert [delta async for delta in session.turn()] == []
        with pytest.raises(InvalidRequest) as refusal:
            await session.send([1])
        assert refusal.value.status == 409


async def test_input_before_the_pause_is_used_at_the_pause(client, oracle):
    expected = turns_of(oracle, [200, 200, 200, 200], seed=6)
    async with open_session(client, 6, 200) as session:
        for index, ids in enumerate(INPUTS):
            await session.send(ids, last=index == 2)
        with pytest.raises(InvalidRequest, match="last input"):
            await session.send([1])
        got = [await read_turn(session) for _ in expected]
    assert [ids for ids, _, _ in got] == expected
    assert [last.is_paused for _, _, last in got] == [True, True, True, False]


async def test_a_session_that_is_told_that_no_more_comes_ends_as_it_paused(client, oracle):
    async with open_session(client, 7, 10) as session:
        assert (await read_turn(session))[2].is_paused
        await session.finish()
        ids, _, last = await read_turn(session)
        assert (ids, last.finish_reason, last.is_paused) == ([], "length", False)
    async with open_session(client, 7, 500) as session:
        await session.finish()  # while the turn goes on: it is the last
        ids, _, _ = await read_turn(session)
        assert ids == turns_of(oracle, [500], seed=7)[0]
        assert (await read_or_nothing(session)) in ([], "length")


async def read_or_nothing(session):
    deltas = [delta async for delta in session.turn()]
    return deltas[-1].finish_reason if deltas else []


async def test_a_stop_string_ends_the_turn_and_what_came_behind_it_never_was(client, oracle):
    """The scheduler runs ahead of the text; the next turn goes on behind the stop string's last token."""
    (first,) = turns_of(oracle, [60], seed=8)
    decode = oracle.text
    texts = [decode(first[: count + 1]) for count in range(60)]
    cut = next(i for i in range(25, 60) if len(texts[i]) > len(texts[i - 1]) and texts[i][-3:] not in texts[i - 1])
    stop = texts[cut][-3:]
    context = PROMPT + first[: cut + 1] + INPUTS[0]
    expected = oracle.tokens(context, 60, 8)
    async with open_session(client, 8, 60, stop=stop) as session:
        ids, text, last = await read_turn(session)
        assert (ids, last.finish_reason, last.stop_reason, last.is_paused) == (first[: cut + 1], "stop", stop, True)
        assert text == texts[cut][:-3]
        assert last.usage.completion_tokens == cut + 1
        await session.send(INPUTS[0], last=True)
        ids, _, last = await read_turn(session)
        assert ids == expected[: len(ids)]
        assert last.finish_reason in ("length", "stop") and session.has_ended


async def test_input_that_leaves_no_place_for_output_ends_the_session(client, server):
    async with open_session(client, 9, 10) as session:
        await read_turn(session)
        await session.send("many letters " * 4_000 + "x " * 30_000)
        with pytest.raises(InvalidRequest) as refusal:
            await read_turn(session)
        assert refusal.value.code == "context_length_exceeded"
    await until_idle(server.url)


async def test_a_client_that_leaves_ends_the_session_wherever_it_is(client, server):
    async with open_session(client, 10, 10) as session:
        await read_turn(session)
        paused = session.session_id
    async with open_session(client, 10, 20_000) as session:
        await anext(session.turn())
    await until_idle(server.url)
    await until_no_live(server.url)
    with pytest.raises(InvalidRequest) as refusal:
        await session_send(client, paused)
    assert refusal.value.status == 409


async def session_send(client: AsyncClient, session_id: str) -> None:
    session = client.session([1])
    session.session_id = session_id
    await session.send([1])


async def until_no_live(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(url + "/load") as response:
                if (await response.json())["server_load"] == 0:
                    return
            await asyncio.sleep(0.01)  # between two looks


@pytest.mark.parametrize(
    "victims",
    [
        ["tokenizer", "worker"],
        pytest.param(["worker"], marks=pytest.mark.nightly),
        pytest.param(["tokenizer"], marks=pytest.mark.nightly),
        pytest.param(["scheduler"], marks=pytest.mark.nightly),
    ],
    ids="+".join,
)
async def test_it_survives_deaths_between_turns(client, server, oracle, victims):
    expected = turns_of(oracle, [40, 40, 40], seed=11)
    async with open_session(client, 11, 40) as session:
        for index, ids in enumerate(expected):
            assert (await read_turn(session))[0] == ids
            kill(server, victims)
            if index < 2:
                await session.send(INPUTS[index], last=index == 1)
    await ready(client)


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["worker", "tokenizer", "scheduler"])
async def test_it_survives_deaths_inside_turns(client, server, oracle, victim):
    expected = turns_of(oracle, [2000, 2000, 2000], seed=12)
    async with open_session(client, 12, 2000) as session:
        for index, ids in enumerate(expected):
            turn = session.turn()
            first = await anext(turn)
            kill(server, [victim])
            rest = [delta async for delta in turn]
            assert first.token_ids + [i for delta in rest for i in delta.token_ids] == ids
            if index < 2:
                await session.send(INPUTS[index], last=index == 1)
    await ready(client)


async def test_input_that_was_lost_with_the_tokenizer_is_sent_again(client, server, oracle):
    """The input is on its way to a tokenizer that stands still, and dies."""
    expected = turns_of(oracle, [40, 40], seed=13)
    async with open_session(client, 13, 40) as session:
        await read_turn(session)
        pid = server.pid_of("tokenizer")
        with held(pid):
            await session.send(INPUTS[0], last=True)
            os.kill(pid, signal.SIGKILL)
        assert (await read_turn(session))[0] == expected[1]
    await ready(client)


def kill(server: ServerProcess, names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid_of(name), signal.SIGKILL)


async def ready(client: AsyncClient) -> None:
    while not await client.ready():
        await asyncio.sleep(0.01)  # between two looks


@pytest.mark.nightly
async def test_an_idle_session_ends_with_timeout(null_model, oracle):
    with null_server(null_model, "server.session_idle_s=0.2") as server:
        async with AsyncClient(server.url) as client, open_session(client, 14, 10) as session:
            assert (await read_turn(session))[2].is_paused
            ids, _, last = await read_turn(session)
            assert (ids, last.finish_reason, last.is_paused) == ([], "timeout", False)
            await until_idle(server.url)
            assert (
                await asyncio.to_thread(
                    read_counter, server.url, 'callboard:request_success_total{finished_reason="length"}'
                )
                == 1
            )


@pytest.mark.nightly
async def test_a_session_that_is_paused_does_not_hold_up_a_drain(null_model):
    with null_server(null_model, "server.drain_timeout_s=3600") as server:
        async with AsyncClient(server.url) as client, open_session(client, 15, 10) as session:
            await read_turn(session)
            os.kill(server.pid, signal.SIGTERM)
            assert (await read_turn(session))[2].finish_reason == "abort"
        assert await asyncio.to_thread(server.wait) == 0
