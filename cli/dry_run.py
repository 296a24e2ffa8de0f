"""`callboard topology dry-run`: the whole engine of a topology, its model apart, and one request through it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterable, Sequence
from pathlib import Path

import msgspec

from ..actors.description import engines_of
from ..actors.launch import Launch, prepare_launch
from ..actors.supervisor import Supervisor, watch_signals
from ..client import AsyncClient
from ..client.deltas import ClientDelta
from ..client.params import SamplingFields
from ..errors import CallboardError, EngineFailure, InvalidRequest, StartFailed
from ..topology import Topology, load_topology
from ..topology.plan import split_kind
from ..topology.schema import NULL_DEVICE
from .child import child_start
from .shown_progress import shown_progress

_PROMPT = "Is anybody there?"
_NUM_TOKENS = 8


def dry_run(file: Path, overrides: Sequence[str]) -> int:
    """Start all processes with null devices, on a free port of 127.0.0.1; stream one answer; stop.

    Returns the exit status. Raises StartFailed, also for a request that fails.
    """
    topology = _without_model(load_topology(file, overrides))
    with shown_progress() as bars:
        launch = prepare_launch(topology, progress=bars)
    return asyncio.run(_run(launch))


def _without_model(topology: Topology) -> Topology:
    """The same graph on null devices, each of one rank; it never takes the configured address, where the real engine
    may be serving."""
    processes = tuple(
        msgspec.structs.replace(process, device=NULL_DEVICE, tensor_parallel=1, pipeline_parallel=1)
        if any(split_kind(actor)[0] == "worker" for actor in process.actors)
        else process
        for process in topology.process
    )
    server = msgspec.structs.replace(topology.server, host="127.0.0.1", port=0)
    return msgspec.structs.replace(topology, process=processes, server=server)


async def _run(launch: Launch) -> int:
    supervisor = Supervisor(launch, child_start(launch.topology))
    watch_signals(supervisor)
    await supervisor.start()
    stopped = asyncio.ensure_future(supervisor.wait())
    failure: CallboardError | None = None
    try:
        print("\n".join(_start_lines(supervisor.url)), flush=True)
        print(await _request(supervisor.url, _api_key(launch.topology)), flush=True)
    except CallboardError as error:
        failure = error
    supervisor.request_stop()
    status = await stopped
    if failure is not None:
        raise StartFailed(f"{type(failure).__name__}: {failure}", phase="request") from failure
    if status == 0:
        print("dry run OK")
    return status


def _start_lines(url: str) -> list[str]:
    """When each actor came into each phase of its start, seconds since the first one began."""
    engine = next(engine for engine in engines_of(os.getpid()) if engine.description.url == url)
    times = {(process, actor): line.phase_times_ns() for process, actor, line in engine.lines()}
    begin_ns = min(min(phases.values()) for phases in times.values())
    widths = [max(len(names[i]) for names in times) for i in (0, 1)]
    lines = []
    for (process, actor), phases in times.items():
        shown = ", ".join(f"{phase.name.lower()} {(at - begin_ns) / 1e9:.2f} s" for phase, at in phases.items())
        lines.append(f"{actor:<{widths[1]}}  {process:<{widths[0]}}  {shown}")
    return lines


class _Answer(msgspec.Struct):
    """One streamed answer; seconds on the client's clock."""

    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    num_tokens: int = 0
    prompt_tokens: int = 0

    def line(self, kind: str) -> str:
        ttft_ms, e2e_ms = (self.first_s - self.sent_s) * 1e3, (self.last_s - self.sent_s) * 1e3
        tpot_ms = (e2e_ms - ttft_ms) / max(self.num_tokens - 1, 1)
        return (
            f"{kind}: {self.prompt_tokens} prompt tokens, {self.num_tokens} tokens; "
            f"TTFT {ttft_ms:.1f} ms, TPOT {tpot_ms:.2f} ms, E2E {e2e_ms:.1f} ms"
        )


async def _request(url: str, api_key: str | None) -> str:
    """Stream one answer, as a chat if the model has a template; what it took. Raises CallboardError."""
    settings: SamplingFields = {"max_tokens": _NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    async with AsyncClient(url, api_key) as client:
        try:
            kind, answer = "chat", await _read(client.chat([{"role": "user", "content": _PROMPT}], **settings))
        except InvalidRequest:  # the model has no chat template
            kind, answer = "completion", await _read(client.complete(_PROMPT, **settings))
    if answer.num_tokens != _NUM_TOKENS:
        raise EngineFailure(f"the answer has {answer.num_tokens} of {_NUM_TOKENS} tokens")
    return answer.line(kind)


async def _read(deltas: AsyncIterable[ClientDelta]) -> _Answer:
    answer = _Answer(sent_s=time.perf_counter())
    async for delta in deltas:
        if delta.token_ids:
            answer.last_s = time.perf_counter()
            answer.first_s = answer.first_s or answer.last_s
            answer.num_tokens += len(delta.token_ids)
        if delta.usage is not None:
            answer.prompt_tokens = delta.usage.prompt_tokens
    return answer


def _api_key(topology: Topology) -> str | None:
    """The first key of the topology's file, which the server has read already."""
    path = topology.server.api_keys_file
    if path is None:
        return None
    return Path(path).read_text(encoding="utf-8").split()[0]
