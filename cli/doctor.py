"""`callboard doctor`: what every actor of a running engine does, read from its progress page; nobody is asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ..actors.description import RunningEngine, engines_of, find_engines
from ..actors.loading import LoadingStatistics
from ..scheduling.statistics import SchedulerStatistics
from ..shm_queue import Phase, ProgressLine
from ..topology import kind_of

QUIET_S = 5.0
"""An event loop that has not turned, or a step that has not ended, for so long is named."""
_STATES = {"R": "runs", "S": "sleeps", "D": "in the kernel", "T": "stopped", "t": "traced", "Z": "dead", "X": "dead"}
_HEADER = ("actor", "process", "pid", "state", "phase", "since", "last step", "progress", "heartbeat")


def examine(which: str | None) -> int:
    """Print the state of one engine, or the list of them all if there are several and none is named.

    `which`: the supervisor's pid or the server's URL. Returns 0 if nothing is wrong that can be seen from outside, 1
    otherwise, also if there is no such engine.
    """
    engines = _named(which)
    if not engines:
        where = "" if which is None else f" at {which}"
        print(f"no engine of this user runs{where} on this machine", file=sys.stderr)
        return 1
    if len(engines) > 1:
        for engine in engines:
            print(f"pid {engine.pid}  {engine.description.url}  {engine.description.model}")
        print("name one of them: callboard doctor PID")
        return 0
    lines, findings = report(engines[0], time.monotonic_ns())
    print("\n".join(lines))
    for finding in findings:
        print(f"! {finding}")
    if not findings:
        print("nothing is wrong that can be seen from here")
    return 1 if findings else 0


def _named(which: str | None) -> list[RunningEngine]:
    if which is None:
        return find_engines()
    if which.isdigit():
        return engines_of(int(which))
    port = _port_of(which)
    return [engine for engine in find_engines() if _port_of(engine.description.url) == port]


def _port_of(url: str) -> int | None:
    parts = urlsplit(url if "//" in url else f"//{url}")
    try:
        return parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


def report(engine: RunningEngine, now_ns: int) -> tuple[list[str], list[str]]:
    """(the lines to print, what is wrong). now_ns: CLOCK_MONOTONIC."""
    rows: list[Sequence[str]] = [_HEADER]
    findings: list[str] = []
    statistics: list[str] = []
    _find_state(f"the supervisor (pid {engine.pid})", engine.pid, findings)
    for process, actor, line in engine.lines():
        rows.append(_row(process, actor, line, now_ns))
        _find(process, actor, line, now_ns, findings)
        if kind_of(actor) == "scheduler":
            statistics += _statistics(actor, line.read_statistics(SchedulerStatistics))
        if line.phase is Phase.LOADING:
            loading = line.read_statistics(LoadingStatistics)
            statistics.append(f"{actor}: loaded {loading.bytes_done:,} of {loading.bytes_total:,} bytes")
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    table = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    description = engine.description
    return [f"engine pid {engine.pid}  {description.url}  {description.model}", *table, *statistics], findings


def _row(process: str, actor: str, line: ProgressLine, now_ns: int) -> Sequence[str]:
    phase = line.phase
    since_ns = line.stepping_since_ns if phase is Phase.STEPPING else line.phase_times_ns().get(phase, 0)
    return (
        actor,
        process if line.incarnation <= 1 else f"{process} (life {line.incarnation})",
        str(line.pid or "-"),
        _STATES.get(_state(line.pid), "gone"),
        phase.name.lower(),
        _age(since_ns, now_ns),
        str(line.step) if kind_of(actor) in ("scheduler", "worker") else "-",
        _age(line.time_ns, now_ns),
        _age(line.heartbeat_ns, now_ns),
    )


def _find(process: str, actor: str, line: ProgressLine, now_ns: int, findings: list[str]) -> None:
    """Append what is wrong with an actor."""
    who = f"{actor} (process {process}, pid {line.pid})"
    _find_state(who, line.pid, findings)
    if line.stepping_since_ns and (still_s := _seconds(line.stepping_since_ns, now_ns)) > QUIET_S:
        findings.append(f"{who} has been in step {line.step} for {still_s:.0f} s")
    if line.heartbeat_ns and (still_s := _seconds(line.heartbeat_ns, now_ns)) > QUIET_S:
        findings.append(f"{who}: its event loop has not turned for {still_s:.0f} s")


def _find_state(who: str, pid: int, findings: list[str]) -> None:
    if pid == 0:
        findings.append(f"{who} has no process now: it waits for its start")
        return
    match _state(pid):
        case "T" | "t":
            findings.append(f"{who} is stopped: a signal or a debugger holds it; `kill -CONT {pid}` lets it go on")
        case "" | "Z" | "X":
            findings.append(f"{who} has ended; the supervisor starts it again or ends the engine")


def _statistics(actor: str, s: SchedulerStatistics) -> list[str]:
    used = s.num_blocks - s.num_free_blocks
    return [
        f"{actor}: {s.num_running} running, {s.num_waiting} waiting ({s.num_waiting_tokens:,} tokens), "
        f"{s.num_paused:,} sessions paused, {s.num_finished:,} finished ({s.num_timed_out:,} at their deadlines), "
        f"{s.num_preemptions:,} preemptions; {s.num_steps:,} steps",
        f"{actor}: {used:,} of {s.num_blocks:,} KV blocks in use, {s.num_leaks:,} leaked; {s.prompt_tokens:,} prompt "
        f"tokens ({s.prefix_cache_hits:,} of {s.prefix_cache_queries:,} looked up were cached), "
        f"{s.generation_tokens:,} generated ({s.num_accepted_tokens:,} of {s.num_draft_tokens:,} drafts were accepted)",
    ]


def _state(pid: int) -> str:
    """The kernel's letter for the state of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] if pid else ""
    except OSError:
        return ""


def _seconds(since_ns: int, now_ns: int) -> float:
    return max(0, now_ns - since_ns) / 1e9


def _age(since_ns: int, now_ns: int) -> str:
    """`1.2 s`; a dash for a time that never was."""
    return f"{_seconds(since_ns, now_ns):,.1f} s" if since_ns else "-"
