"""A frontend without an engine: each request gets a `FakeStream` that a script or the test fills.

The fixtures at the end are those of tests/server and tests/client: a fake frontend, a real HTTP server over it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable

import aiohttp
import pytest

from callboard.actors.frontend_api import ActorStart, Delta, Health
from callboard.mailbox.messages.requests import (
    AS_IT_IS,
    Explanation,
    Finish,
    Prompt,
    PromptDetails,
    PromptOptions,
    RequestLedger,
    SessionInput,
    TextPrompt,
    Tokenized,
    Usage,
)
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.server import start_server
from callboard.topology.schema import KVCacheSection, ServerSection

MODEL = "fake/model-1"
MAX_MODEL_LEN = 64
VOCAB_SIZE = 100


def finish(reason="stop", completion_tokens=3, cached_tokens=2, **more):
    return Finish(reason, Usage(5, completion_tokens, cached_tokens), **more)


def delta(text="", token_ids=(), *, end=None, position=0, choice=0, **more):
    return Delta(choice, position, list(token_ids), text, end, **more)


class FakeStream:
    def __init__(self, request_id, prompt, sampling, cache_salt, returns_prompt, num_choices=1):
        self.request_id = request_id
        self.num_choices = self._num_choices_left = num_choices
        self.prompt, self.sampling = prompt, sampling
        self.cache_salt, self.returns_prompt = cache_salt, returns_prompt
        self.num_closes = 0
        self.closed = asyncio.Event()
        self.flood: Delta | None = None
        """Comes again and again, for as long as somebody reads."""
        self.num_taken = 0
        """Deltas of the flood that were read."""
        self._events: asyncio.Queue[Delta | BaseException] = asyncio.Queue()
        self._is_over = False

    def push(self, *events):
        for event in events:
            self._events.put_nowait(event)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.flood is not None:
            await asyncio.sleep(0)
            self.num_taken += 1
            return self.flood
        if self._is_over:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, BaseException):
            self._is_over = True
            raise event
        self._num_choices_left -= event.finish is not None
        self._is_over = self._num_choices_left == 0
        return event

    def close(self):
        self.num_closes += 1
        self.closed.set()


def hello(stream: FakeStream) -> None:
    """For each choice three tokens, two deltas and a finish; prompt ids if asked for."""
    prompt = PromptDetails([7, 8, 9, 10, 11], "a prompt") if stream.returns_prompt else None
    for choice in range(stream.num_choices):
        stream.push(delta("Hel", [1], choice=choice, prompt=prompt))
    for choice in range(stream.num_choices):
        stream.push(delta("lo wörld", [2, 3], choice=choice, position=1, end=finish("stop")))


class FakeFrontend:
    def __init__(self, script: Callable[[FakeStream], None] = hello):
        self.model_name, self.max_model_len, self.vocab_size = MODEL, MAX_MODEL_LEN, VOCAB_SIZE
        self.max_live_requests = 10_000
        self.has_priorities = False
        self.takes_sessions = True
        self.tool_call_parser, self.reasoning_parser = "none", "none"
        self.inputs: list[tuple[str, SessionInput | None]] = []
        self.input_refusal: Exception | None = None
        self.kv_cache = KVCacheSection(block_size=8, num_blocks=100, prefix_caching=False)
        self.script = script
        self.refusal: Exception | None = None
        self.streams: list[FakeStream] = []
        self.arrivals: asyncio.Queue[FakeStream] = asyncio.Queue()
        self.health_now = Health(True, True, "")
        self.statistics = SchedulerStatistics()
        self.grammar = None
        self.tokenized: list[tuple[Prompt, PromptOptions]] = []
        """What `tokenize` was asked."""
        self.ledgers: dict[str, tuple[RequestLedger, ...]] = {}
        """By the engine's id: what the scheduler would say of it."""
        self.explained: list[str] = []
        """What `explain` was asked."""

    def submit(
        self,
        request_id,
        prompt,
        sampling: SamplingParams,
        *,
        cache_salt="",
        returns_prompt=False,
        num_choices=1,
        options=AS_IT_IS,
        priority=0,
        tenant="",
        deadline_ms=None,
        session_idle_s=None,
        output_format=None,
        reasoning=None,
        kept_markers=(),
    ):
        if self.refusal is not None:
            raise self.refusal
        stream = FakeStream(request_id, prompt, sampling, cache_salt, returns_prompt, num_choices)
        stream.options, stream.priority, stream.session_idle_s = options, priority, session_idle_s
        stream.tenant, stream.deadline_ms = tenant, deadline_ms
        stream.output_format, stream.reasoning, stream.kept_markers = output_format, reasoning, kept_markers
        self.streams.append(stream)
        self.arrivals.put_nowait(stream)
        self.script(stream)
        return stream

    def add_input(self, request_id, given):
        if self.input_refusal is not None:
            raise self.input_refusal
        self.inputs.append((request_id, given))

    def health(self):
        return self.health_now

    def startup(self):
        return [
            ActorStart("scheduler", "serving", {"starting": 0.5}),
            ActorStart("worker", "loading", {"starting": 2.0}),
        ]

    def scheduler_statistics(self):
        return self.statistics

    def grammar_statistics(self):
        return self.grammar

    async def tokenize(self, prompt, options, *, returns_strings=False):
        """A token a character, its id the code point modulo the vocabulary; of chat those of the contents."""
        self.tokenized.append((prompt, options))
        if self.refusal is not None:
            raise self.refusal
        text = prompt.text if isinstance(prompt, TextPrompt) else "".join(m.content or "" for m in prompt.messages)
        ids = [ord(character) % VOCAB_SIZE for character in text]
        return Tokenized("fake", 1, ids, list(text) if returns_strings else None)

    async def detokenize(self, token_ids):
        """`<id>` a token."""
        if self.refusal is not None:
            raise self.refusal
        return "".join(f"<{token_id}>" for token_id in token_ids)

    async def explain(self, request_id):
        self.explained.append(request_id)
        if self.refusal is not None:
            raise self.refusal
        return Explanation("fake", 1, request_id, time.monotonic_ns(), self.ledgers.get(request_id, ()))

    def num_live_requests(self):
        return sum(not stream.closed.is_set() for stream in self.streams)


async def serve_fake(frontend: FakeFrontend, **settings):
    """(server, base URL) on a free port of the loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = await start_server(frontend, ServerSection(**settings), listener)
    return server, f"http://127.0.0.1:{server.port}"


def events_of(body: bytes) -> list[dict | str]:
    """Events of a whole stream by the rules of the format: blocks between empty lines, comments begin with a colon."""
    events: list[dict | str] = []
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == "", "the stream must end with an empty line"
    for block in blocks:
        if block.startswith(":"):
            continue
        assert block.startswith("data: ") and "\n" not in block
        text = block.removeprefix("data: ")
        events.append(text if text == "[DONE]" else json.loads(text))
    return events


@pytest.fixture
def frontend() -> FakeFrontend:
    return FakeFrontend()


@pytest.fixture
async def serve(frontend):
    """Start a server over the fake frontend: `url = await serve(client_stall_s=1.0)`."""
    servers = []

    async def start(**settings):
        server, url = await serve_fake(frontend, **settings)
        servers.append(server)
        return url

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session
