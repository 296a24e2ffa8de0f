"""Chaos: open-loop load on an engine whose actors are killed and stopped at random, compared with an undisturbed run.

    python -m callboard.bench.chaos MODEL [--seconds 60] [--rate 20] [--kill-every 5] [--stop-every 30] [--seed 0]

Every actor has a process of its own: two frontends on one port, two tokenizers, scheduler, worker. A request counts as
lost if it does not come to its end, unless the frontend that held it was killed: a connection cannot be resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from .chaos_load import ChaosRequest, Choice, Client, Outcome, make_requests
from .machine import describe_machine
from .overlap import read_counter
from .server_process import ServerProcess

PROCESSES = ("frontend_a", "frontend_b", "tokenizer_a", "tokenizer_b", "scheduler", "worker")
_NEAR_TIE = 0.02
"""Natural log: the two most likely tokens may change places between batches when they are nearer than that."""
_BREAK_S = 2.0
"""So long after a frontend's end a client may see that its connection has broken."""
CALM_S = 10.0
"""So much of the undisturbed run keeps the rate, for its latencies; the rest hurries, for its answers alone."""

_TOPOLOGY = """
[model]
source = {source}
served_name = "chaos"
dtype = "float32"
max_model_len = 512
[server]
port = 0
[supervision]
step_deadline_s = {deadline_s}
actor_deadline_s = {deadline_s}
""" + "".join(
    f"""
[[process]]
name = "{name}"
actors = ["{name.partition("_")[0]}"]
restart = {{{{ max = 1000000, within_s = 1.0, backoff_s = 0.0 }}}}
"""
    for name in PROCESSES
)


class Disturber:
    """Kills a random process every `kill_every_s`, stops one every `stop_every_s`, and remembers frontends' ends."""

    def __init__(self, server: ServerProcess, seed: int, kill_every_s: float, stop_every_s: float) -> None:
        self._server = server
        self._draw = random.Random(seed)
        self._kill_every_s, self._stop_every_s = kill_every_s, stop_every_s
        self.frontend_ends_s: list[tuple[float, float]] = []
        """(signalled, gone), monotonic: a stopped frontend holds its requests until the engine has killed it."""
        self.counts: dict[str, int] = {}

    async def run(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._kill_every_s, seconds, signal.SIGKILL, group))
            group.create_task(self._every(self._stop_every_s, seconds, signal.SIGSTOP, group))

    async def _every(self, interval_s: float, seconds: float, number: signal.Signals, group: asyncio.TaskGroup) -> None:
        for _ in range(int(seconds / interval_s)):
            await asyncio.sleep(interval_s)
            process = self._draw.choice(PROCESSES)
            pid = self._server.pid_of(process)
            with contextlib.suppress(ProcessLookupError):  # it is down already, and its successor not ready yet
                pidfd = os.pidfd_open(pid)
                signal.pidfd_send_signal(pidfd, number)
                self.counts[f"{number.name} {process}"] = self.counts.get(f"{number.name} {process}", 0) + 1
                group.create_task(self._wait_gone(process, pidfd))

    async def _wait_gone(self, process: str, pidfd: int) -> None:
        signalled_s = time.monotonic()
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, gone.set)
        await gone.wait()
        loop.remove_reader(pidfd)
        os.close(pidfd)
        if process.startswith("frontend"):
            self.frontend_ends_s.append((signalled_s, time.monotonic()))


class ChaosReport(msgspec.Struct):
    """Counts of requests, each in one of them; then examples of what was wrong."""

    num_requests: int
    num_same: int
    num_near_ties: int
    """Greedy answers that part from the undisturbed ones at a near-tie, and only there."""
    num_left: int
    """Clients that left; what they had seen was right."""
    num_with_frontend: int
    """Lost with the frontend that held them."""
    num_lost: int
    num_different: int
    problems: list[str]
    calm_s: list[float]
    """Latencies of the part of the undisturbed run that had the same rate, ascending."""
    rough_s: list[float]
    """Latencies of the requests that ended in the disturbed run, ascending."""
    disturbances: dict[str, int]
    is_idle: bool
    """At the end nothing ran or waited, and all blocks were free."""

    def render(self) -> str:
        def at(latencies_s: list[float], share: float) -> float:
            return latencies_s[min(int(share * len(latencies_s)), len(latencies_s) - 1)] if latencies_s else 0.0

        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        extra = {name: at(self.rough_s, share) - at(self.calm_s, share) for name, share in shares.items()}
        lines = [
            describe_machine(),
            "disturbances: " + ", ".join(f"{what} {count}" for what, count in sorted(self.disturbances.items())),
            f"requests {self.num_requests}: same {self.num_same}, near-ties {self.num_near_ties}, "
            f"clients left {self.num_left}, lost with their frontend {self.num_with_frontend}, "
            f"LOST {self.num_lost}, DIFFERENT {self.num_different}",
            "extra latency: " + ", ".join(f"{name} {value:.2f} s" for name, value in extra.items()),
            f"idle and all blocks free at the end: {'yes' if self.is_idle else 'NO'}",
        ]
        return "\n".join([*lines, *self.problems[:20]])


def compare(
    requests: Sequence[ChaosRequest],
    undisturbed: dict[int, Outcome],
    disturbed: dict[int, Outcome],
    disturber: Disturber,
    is_idle: bool,
) -> ChaosReport:
    """Each request's outcome against that of the undisturbed run. Raises ValueError if that one was not clean."""
    report = ChaosReport(len(requests), 0, 0, 0, 0, 0, 0, [], [], [], dict(disturber.counts), is_idle)
    for index, request in enumerate(requests):
        right, seen = undisturbed[index], disturbed[index]
        if right.error is not None:
            raise ValueError(f"request {index} of the undisturbed run: {right.error}")
        if seen.error is not None:
            if seen.is_dropped and _held_by_dead(seen, disturber.frontend_ends_s):
                report.num_with_frontend += 1
            else:
                report.num_lost += 1
                report.problems.append(f"lost {index}: {seen.error} {request.body}")
            continue
        verdicts = {_verdict(r, s, request) for r, s in zip(right.choices, seen.choices, strict=True)}
        if "different" in verdicts:
            report.num_different += 1
            report.problems.append(f"different {index}: {right.choices} {seen.choices} {request.body}")
        elif request.abort_after is not None:
            report.num_left += 1
        elif "near-tie" in verdicts:
            report.num_near_ties += 1
        else:
            report.num_same += 1
        if request.abort_after is None:
            report.rough_s.append(seen.ended_s - seen.sent_s)
            if request.at_s < CALM_S:
                report.calm_s.append(right.ended_s - right.sent_s)
    report.rough_s.sort()
    report.calm_s.sort()
    return report


def _held_by_dead(outcome: Outcome, ends_s: Sequence[tuple[float, float]]) -> bool:
    return any(outcome.sent_s <= gone and first <= outcome.ended_s <= gone + _BREAK_S for first, gone in ends_s)


def _verdict(right: Choice, seen: Choice, request: ChaosRequest) -> str:
    if request.abort_after is not None:
        count = min(len(right.tokens), len(seen.tokens))
        is_same = right.tokens[:count] == seen.tokens[:count]
    else:
        is_same = (right.text, right.tokens, right.finish) == (seen.text, seen.tokens, seen.finish)
    if is_same:
        return "same"
    if request.body["temperature"] == 0:
        pairs = enumerate(zip(right.tokens, seen.tokens, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), None)
        if first is not None and first < len(right.gaps) and right.gaps[first] < _NEAR_TIE:
            return "near-tie"
    return "different"


def write_topology(source: str, folder: Path, deadline_s: float, device: str | None) -> Path:
    """The topology of the run; `device` of the worker, if not the default."""
    text = _TOPOLOGY.format(source=json.dumps(source), deadline_s=deadline_s)
    if device is not None:
        text = text.replace('actors = ["worker"]', f'actors = ["worker"]\ndevice = "{device}"')
    path = folder / "chaos.toml"
    path.write_text(text)
    return path


@contextlib.contextmanager
def serve(source: str, deadline_s: float, device: str | None) -> Iterator[ServerProcess]:
    """A server of that topology."""
    with tempfile.TemporaryDirectory(prefix="callboard-chaos-") as folder:
        path = write_topology(source, Path(folder), deadline_s, device)
        with ServerProcess("--topology", str(path)) as server:
            yield server


def run_chaos(
    source: str,
    *,
    seconds: float,
    rate: float,
    kill_every_s: float = 5.0,
    stop_every_s: float = 30.0,
    deadline_s: float = 5.0,
    device: str | None = None,
    seed: int = 0,
) -> ChaosReport:
    """Both runs, one after the other. `deadline_s`: after that a stopped process is killed."""
    requests = make_requests(int(seconds * rate), rate, seed)
    with serve(source, deadline_s, device) as server:
        calm = Client(server.url)
        asyncio.run(calm.run(requests, CALM_S))
    with serve(source, deadline_s, device) as server:
        rough = Client(server.url)
        disturber = Disturber(server, seed, kill_every_s, stop_every_s)

        async def both() -> bool:
            async with asyncio.TaskGroup() as group:
                group.create_task(rough.run(requests))
                group.create_task(disturber.run(seconds))
            return await asyncio.to_thread(_comes_to_rest, server.url)

        is_idle = asyncio.run(both())
    return compare(requests, calm.outcomes, rough.outcomes, disturber, is_idle)


def _comes_to_rest(url: str) -> bool:
    """Whether nothing runs, waits or holds a block within a minute; a frontend may still be on its way back."""
    deadline_s = time.monotonic() + 60.0
    gauges = ("callboard:num_requests_running", "callboard:num_requests_waiting", "callboard:kv_cache_usage_perc")
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            if not any(read_counter(url, gauge) for gauge in gauges):
                return True
        time.sleep(0.1)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--kill-every", type=float, default=5.0)
    parser.add_argument("--stop-every", type=float, default=30.0)
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    report = run_chaos(
        args.model,
        seconds=args.seconds,
        rate=args.rate,
        kill_every_s=args.kill_every,
        stop_every_s=args.stop_every,
        device=args.device,
        seed=args.seed,
    )
    print(report.render())
    raise SystemExit(bool(report.num_lost or report.num_different or not report.is_idle))


if __name__ == "__main__":
    main()
