"""Two loads on one engine in turns, with one journal: what drifts in the machine's speed drifts for both.

Between two segments the engine is idle: all requests of one have ended before the next begins.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from ..checkpoints import read_shape, resolve_checkpoint
from ..cli.simulate_fit import Recorded, read_recorded
from ..journal.files import files_of
from ..mailbox.messages.admission import Admit
from ..mailbox.messages.steps import StepPlan
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event
from ..simulation import TraceRequest
from ..simulation.periods import Period
from ..simulation.tables import milliseconds
from .cores import Cores, pinned
from .open_loop import LoadGenerator, Outcome, completion_request, poisson_arrivals
from .server_process import ServerProcess

NUM_WARM_UPS = 4
PAUSE_S = 0.5


class Load(msgspec.Struct, frozen=True):
    """Requests per second, and mean lengths in tokens."""

    rate_per_s: float
    input_len: int
    output_len: int

    def requests(self, seconds: float, seed: int) -> list[TraceRequest]:
        """When they are due, and how long they are. Raises RuntimeError if none comes."""
        draw = random.Random(seed)
        arrivals_s = poisson_arrivals(self.rate_per_s, seconds, seed)
        if not arrivals_s:
            raise RuntimeError(f"no request came in {seconds:g} s: a segment is too short for this rate")
        return [
            TraceRequest(round(at_s * 1e9), _around(draw, self.input_len), max(2, _around(draw, self.output_len)))
            for at_s in arrivals_s
        ]


class Segment(msgspec.Struct, frozen=True):
    """One load for some seconds, as the client saw it."""

    trace: list[TraceRequest]
    """With the times at which the requests were sent, since the segment began."""
    outcomes: list[Outcome]
    period: Period

    def ttft_ns(self) -> list[float]:
        """Of each request, from its sending to the first event of its stream."""
        return [1e9 * (outcome.first_s - outcome.late_s) for outcome in self.outcomes]

    def tpot_ns(self) -> list[float]:
        """Of each request."""
        return [
            1e9 * (outcome.end_s - outcome.first_s) / (request.num_output_tokens - 1)
            for request, outcome in zip(self.trace, self.outcomes, strict=True)
        ]

    def line(self) -> str:
        """For a person, while it goes on."""
        medians = [milliseconds(float(np.median(values)) / 1e6) for values in (self.ttft_ns(), self.tpot_ns())]
        return f"{len(self.trace)} requests, median TTFT {medians[0]} ms, TPOT {medians[1]} ms"


class Alternation(msgspec.Struct, frozen=True):
    """What was measured: the fit of the first load's segments, and all of both."""

    recorded: Recorded
    fitted: list[Segment]
    checked: list[Segment]
    outside_ns: int
    """What a client's TTFT has beside the engine's, from a request's arrival to the delta with its first token: the
    median over the first load's requests."""


class EngineTtft:
    """Observer of a replay: of each request its arrival, and when its first token left the scheduler."""

    def __init__(self) -> None:
        self._arrival_ns: dict[str, int] = {}
        self._first_ns: dict[str, int] = {}

    def events(self, now_ns: int, events: Sequence[Event]) -> None:
        """The scheduler got these."""
        for event in events:
            if isinstance(event, Admit):
                self._arrival_ns.setdefault(event.request_id, event.arrival_ns)

    def planned(self, plan: StepPlan) -> None:
        """It made this plan: nothing to learn."""

    def sent(self, now_ns: int, outgoing: Outgoing) -> None:
        """It sent this."""
        for deltas in outgoing.deltas.values():
            for request_id in deltas.request_ids:
                self._first_ns.setdefault(request_id, now_ns)

    def of(self, period: Period) -> list[int]:
        """Nanoseconds of each request that arrived in it, in the order of arrival."""
        arrived = sorted(
            (arrival_ns, request_id)
            for request_id, arrival_ns in self._arrival_ns.items()
            if period.begin_ns <= arrival_ns < period.end_ns
        )
        return [self._first_ns[request_id] - arrival_ns for arrival_ns, request_id in arrived]


def alternate(
    model: str,
    loads: tuple[Load, Load],
    *,
    num_pairs: int,
    seconds: float,
    cores: Cores | None = None,
    num_threads: int | None = None,
) -> Alternation:
    """Start an engine, warm it up, send `num_pairs` times both loads for so many seconds each, stop it, and fit.

    Prints a line for each segment as it ends.
    """
    vocab_size = read_shape(resolve_checkpoint(model)).vocab_size
    settings = [] if num_threads is None else ["--set", f"process.worker.threads={num_threads}"]
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        with ServerProcess(model, "--set", f"journal.path={journal}", *settings) as server, pinned(server, cores):
            segments = asyncio.run(_send_all(server.url, loads, num_pairs, seconds, vocab_size))
            server.terminate()
            server.wait()
        fitted, checked = segments[::2], segments[1::2]
        engine_ttft = EngineTtft()
        paths = [path for _, path in sorted(files_of(journal).items())]
        recorded = read_recorded(paths, [segment.period for segment in fitted], (engine_ttft,))
    outside = [
        client_ns - engine_ns
        for segment in fitted
        for client_ns, engine_ns in zip(segment.ttft_ns(), engine_ttft.of(segment.period), strict=True)
    ]
    return Alternation(recorded, fitted, checked, round(float(np.median(outside))))


async def _send_all(
    url: str, loads: tuple[Load, Load], num_pairs: int, seconds: float, vocab_size: int
) -> list[Segment]:
    """The segments of both loads in turns."""
    async with LoadGenerator(url) as generator:
        for number, load in enumerate(loads):
            draw = random.Random(-1 - number)
            request = TraceRequest(0, load.input_len, load.output_len)
            await generator.closed_loop([_body(draw, request, vocab_size) for _ in range(NUM_WARM_UPS)], 2)
        segments = []
        for number in range(2 * num_pairs):
            seed = 2 * number + 1
            trace, draw = loads[number % 2].requests(seconds, seed), random.Random(seed + 1)
            bodies = [_body(draw, request, vocab_size) for request in trace]
            segments.append(await _send(generator, trace, bodies))
            print(f"segment {number + 1} of {2 * num_pairs}: {segments[-1].line()}", flush=True)
        return segments


async def _send(generator: LoadGenerator, trace: list[TraceRequest], bodies: list[bytes]) -> Segment:
    """One segment, behind a pause in which the engine comes to rest. Raises RuntimeError if a request is refused."""
    await asyncio.sleep(PAUSE_S)
    begin_ns = time.monotonic_ns()
    outcomes = await generator.open_loop(bodies, [request.arrival_ns / 1e9 for request in trace])
    period = Period(begin_ns, time.monotonic_ns())
    if any(outcome.status != 200 for outcome in outcomes):
        raise RuntimeError("a request was refused: the load is too high for this machine")
    sent = [
        msgspec.structs.replace(request, arrival_ns=request.arrival_ns + round(outcome.late_s * 1e9))
        for request, outcome in zip(trace, outcomes, strict=True)
    ]
    return Segment(sent, outcomes, period)


def _body(draw: random.Random, request: TraceRequest, vocab_size: int) -> bytes:
    prompt = [draw.randrange(1, vocab_size) for _ in range(request.num_prompt_tokens)]
    return completion_request(prompt, request.num_output_tokens)


def _around(draw: random.Random, length: int) -> int:
    return draw.randint(max(1, length // 2), length * 3 // 2)
