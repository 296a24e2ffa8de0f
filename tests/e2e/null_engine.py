"""A server whose worker is the null device: what it must say is known, and what it holds can be looked up from outside.

Starts in about a second. Processes are held with SIGSTOP where a test needs a state to last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from callboard.bench.null_answers import NullDevice
from callboard.bench.overlap import read_counter
from callboard.bench.server_process import ServerProcess
from callboard.checkpoints import resolve_checkpoint
from callboard.text import load_tokenizer

ALL_APART = str(Path(__file__).resolve().parents[2] / "examples" / "all_apart.toml")
GAUGES = ("callboard:num_requests_running", "callboard:num_requests_waiting", "callboard:kv_cache_usage_perc")
PATIENT = ("supervision.step_deadline_s=3600", "supervision.actor_deadline_s=3600")
"""A process that a test holds is not killed for it."""
UNLIMITED = tuple(
    f"process.{name}.restart.{field}"
    for name in ("frontend", "tokenizer", "scheduler", "worker")
    for field in ("max=1000", "backoff_s=0")
)
"""Of the topology `all_apart`: no death is one too many."""


def null_server(folder: Path, *settings: str, topology: str | None = None) -> ServerProcess:
    """A started server; use it in a `with` block."""
    options = ["process.worker.device=null", "process.worker.threads=1", *settings]
    arguments = [word for option in options for word in ("--set", option)]
    return ServerProcess(str(folder), *arguments, *(("--topology", topology) if topology else ()))


class Oracle:
    """Request bodies, and the texts that the null device must answer them with."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(resolve_checkpoint(str(folder)))
        self._device = NullDevice(range(1, self._tokenizer.vocab_size), 0)

    def body(self, index: int, num_tokens: int, **more: object) -> dict[str, Any]:
        """Completion `index`: each has a prompt of its own."""
        settings = {"temperature": 1.0, "seed": index, "ignore_eos": True}
        return {"prompt": self.prompt(index), "max_tokens": num_tokens, **settings, **more}

    @staticmethod
    def prompt(index: int) -> list[int]:
        return [300 + index // 600, 300 + index % 600, 7, 8]

    def texts(self, index: int, num_tokens: int, num_choices: int = 1) -> dict[int, str]:
        """Text by choice."""
        answers = (
            self._device.answer(self.prompt(index), num_tokens, seed=index, choice=choice)
            for choice in range(num_choices)
        )
        return {choice: self._tokenizer.decode(ids) for choice, ids in enumerate(answers)}

    def tokens(self, context: list[int], num_tokens: int, seed: int) -> list[int]:
        """The output behind all that stands before it, at temperature 1."""
        return self._device.answer(context, num_tokens, seed=seed)

    def text(self, token_ids: list[int]) -> str:
        """What they spell."""
        return self._tokenizer.decode(token_ids)


class Answer:
    """One request as its client sees it, read in the background."""

    def __init__(
        self, url: str, session: aiohttp.ClientSession, body: dict[str, Any], path: str = "/v1/completions"
    ) -> None:
        self.status: int | None = None
        """None: no answer has begun."""
        self.texts: dict[int, str] = {}
        self.finishes: dict[int, str] = {}
        self.error: dict[str, Any] | None = None
        self.retry_after: str | None = None
        self.has_done = False
        """[DONE] came, or the whole body of an answer that is not streamed."""
        self.is_cut = False
        """The connection broke."""
        self.begun = asyncio.Event()
        """Some text came, or the end."""
        self._is_stream = bool(body.get("stream"))
        self.task = asyncio.ensure_future(self._ask(session, url + path, body))

    @property
    def end(self) -> str:
        """How it ended: reasons of its choices, or the kind of error."""
        if self.is_cut:
            return "cut" if self.status is not None else "refused"
        if self.error is not None:
            return f"{self.status} {self.error['type']}"
        return ",".join(self.finishes[choice] for choice in sorted(self.finishes))

    @property
    def has_terminal(self) -> bool:
        """It came to an end that says so: reasons or an error, and after them [DONE]."""
        is_said = self.error is not None or (
            bool(self.finishes) and set(self.finishes) == set(self.texts) and None not in self.finishes.values()
        )
        return is_said and self.has_done and not self.is_cut

    async def _ask(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        try:
            async with session.post(url, json=body) as response:
                self.status = response.status
                self.retry_after = response.headers.get("Retry-After")
                if self._is_stream and response.status == 200:
                    async for line in response.content:
                        if line.startswith(b"data: "):
                            self._take(line.removeprefix(b"data: ").strip())
                else:
                    self._take(await response.read())
                    self.has_done = True
        except aiohttp.ClientError:
            self.is_cut = True
        finally:
            self.begun.set()

    def _take(self, data: bytes) -> None:
        assert not self.has_done, "something behind the end"
        if data == b"[DONE]":
            self.has_done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self.error = chunk["error"]
        for choice in chunk.get("choices", ()):
            index = choice["index"]
            assert index not in self.finishes, "text behind a finish"
            text = choice["text"] if "text" in choice else choice.get("delta", choice.get("message")).get("content")
            self.texts[index] = self.texts.get(index, "") + (text or "")
            if choice["finish_reason"] is not None:
                self.finishes[index] = choice["finish_reason"]
            if text:
                self.begun.set()


def clients() -> aiohttp.ClientSession:
    """A session without limits, each request on a connection of its own."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=connector)


# Looking at it from outside


def get(url: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON body."""
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, json.loads(answer.read())


async def until_gauge(url: str, gauge: str, value: float) -> None:
    """Until a gauge of /metrics has this value."""
    while await asyncio.to_thread(read_counter, url, gauge) != value:
        await asyncio.sleep(0.01)  # between two looks


async def until_live(url: str, count: int) -> None:
    """Until so many requests run or wait; a choice is a request."""
    while sum([await asyncio.to_thread(read_counter, url, gauge) for gauge in GAUGES[:2]]) != count:
        await asyncio.sleep(0.01)  # between two looks


async def until_idle(url: str) -> None:
    """Until nothing runs or waits and no block is in use."""
    for gauge in GAUGES:
        await until_gauge(url, gauge, 0)


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """The process stands still inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def successor_held(server: ServerProcess, process: str) -> AsyncIterator[int]:
    """Kill a process; its successor, whose pid it is, stands still in its start inside the block."""
    while True:
        known = set(server.children())
        os.kill(server.pid_of(process), signal.SIGKILL)
        while not (new := set(server.children()) - known):
            await asyncio.sleep(0)
        (pid,) = new
        with held(pid):
            status, _ = await asyncio.to_thread(get, f"{server.url}/ready")
            if status == 503:
                yield pid
                return
        while server.pid_of(process) != pid:  # it had started before it was stopped: once more
            await asyncio.sleep(0.01)  # between two looks at the log


# What is left


class Remains:
    """Everything that a running engine holds, to be looked for when it has ended."""

    def __init__(self, server: ServerProcess) -> None:
        self._pids = descendants(server.pid)
        self._pidfds = [os.pidfd_open(pid) for pid in self._pids]
        self._memfds = {inode for pid in self._pids for inode in _memfds(pid)}
        assert self._memfds, "an engine has boards and a progress page"

    def wait_gone(self) -> None:
        """Until each process has ended (it may be a zombie still); raises AssertionError if any memory is held."""
        for pidfd in self._pidfds:
            ended = select.poll()  # select() knows no number above 1,023
            ended.register(pidfd, select.POLLIN)
            ended.poll()
            os.close(pidfd)
        holders = {}
        for path in Path("/proc").glob("[0-9]*"):
            if left := self._memfds & set(_memfds(int(path.name))):
                holders[path.name] = left
        assert not holders, holders


def descendants(pid: int) -> list[int]:
    """The process and all below it: the template renderer is a child of a child."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for parent in found:  # grows while it is walked
        found += children.get(parent, [])
    return found


def _memfds(pid: int) -> Iterable[int]:
    """Inodes of the memfds that a process has open or mapped."""
    inodes = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith("/memfd:"):
                    inodes.add(os.stat(entry.path).st_ino)
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "/memfd:" in line:
                inodes.add(int(line.split()[4]))
    return inodes


def run_directories(temporary: Path) -> list[str]:
    return sorted(path.name for path in temporary.glob("callboard-*"))
