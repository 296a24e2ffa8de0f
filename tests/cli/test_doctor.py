"""`callboard doctor` beside a real engine, some of whose processes are frozen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from callboard.actors.description import DescribedProcess, EngineDescription, RunningEngine
from callboard.bench.server_process import ServerProcess
from callboard.cli.doctor import report
from callboard.shm_queue import Phase, ProgressPage, create_progress_page


def doctor(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "callboard.cli.main", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True)


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            os.sched_yield()
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_it_answers_for_an_engine_of_which_everything_is_frozen(tiny_llama_dir: Path) -> None:
    with ServerProcess(str(tiny_llama_dir), "--set", "process.worker.device=null") as server:
        control, worker = server.pid_of("control"), server.pid_of("worker")
        done = doctor(str(server.pid))
        assert done.returncode == 0 and done.stdout.endswith("nothing is wrong that can be seen from here\n"), done
        assert f"engine pid {server.pid}  {server.url}  {tiny_llama_dir.name}" in done.stdout
        assert re.search(rf"^worker +worker +{worker} +sleeps +idle +\d+\.\d s +0 ", done.stdout, re.MULTILINE)
        assert re.search(rf"^scheduler +control +{control} +(sleeps|runs) +serving ", done.stdout, re.MULTILINE)
        with frozen(server.pid, worker, control):
            done = doctor(server.url)
        assert done.returncode == 1, done
        findings = [line for line in done.stdout.splitlines() if line.startswith("! ")]
        for who, pid in (
            ("the supervisor (", server.pid),
            ("worker (process worker, ", worker),
            ("scheduler (process control, ", control),
            ("tokenizer (process control, ", control),
            ("frontend (process control, ", control),
        ):
            assert any(f.startswith(f"! {who}pid {pid}) is stopped") for f in findings), (who, findings)
        assert re.search(
            r"^scheduler: 0 running, 0 waiting \(0 tokens\), 0 sessions paused, 0 finished", done.stdout, re.MULTILINE
        )


@pytest.mark.slow
def test_what_is_no_engine() -> None:
    for args in ([str(os.getpid())], ["999999999"], ["http://127.0.0.1:1"], ["nonsense:port"]):
        done = doctor(*args)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr == f"no engine of this user runs at {args[0]} on this machine\n"


@pytest.mark.slow
def test_an_engine_of_another_version_is_passed_over() -> None:
    page_fd = create_progress_page(3)
    description = f'{{"url": "", "model": "", "page_inode": {os.fstat(page_fd).st_ino}, "processes": []}}'
    for contents in (b"{}", b"\xff", description.encode()):  # unknown fields, no JSON, a page of another size
        fd = os.memfd_create("callboard-engine", os.MFD_CLOEXEC)
        try:
            os.write(fd, contents)
            done = doctor(str(os.getpid()))
        finally:
            os.close(fd)
        assert done.returncode == 1 and done.stderr.startswith("no engine of this user runs"), (contents, done)
    os.close(page_fd)


def test_steps_and_loops_that_stand_still_are_named() -> None:
    fd = create_progress_page(3)
    page = ProgressPage(fd, 3)
    now_ns = time.monotonic_ns()
    worker, scheduler, starting = (page.line(i) for i in range(3))
    for line in (worker, scheduler):
        line.begin()
        line.pid = os.getpid()
    worker.mark(phase=Phase.STEPPING, step=17)
    worker.stepping_since_ns = now_ns - 90 * 10**9
    scheduler.mark(phase=Phase.SERVING)
    scheduler.heartbeat_ns = now_ns - 7 * 10**9
    starting.begin()
    processes = (DescribedProcess("w", ("worker",)), DescribedProcess("c", ("scheduler", "frontend")))
    engine = RunningEngine(os.getpid(), EngineDescription("http://h:1", "m", 0, processes), page)
    lines, findings = report(engine, now_ns)
    assert findings == [
        f"worker (process w, pid {os.getpid()}) has been in step 17 for 90 s",
        f"scheduler (process c, pid {os.getpid()}): its event loop has not turned for 7 s",
        "frontend (process c, pid 0) has no process now: it waits for its start",
    ]
    assert re.search(r"stepping +90\.0 s +17", "\n".join(lines))
    os.close(fd)
