"""A forked child has what its parent imported, and nothing else of it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, json, os, signal, socket, sys, threading
from pathlib import Path
from callboard.actors.forks import ForkStart

marker = os.memfd_create("marker", 0)  # inheritable
ran, outer = [], None
import atexit
atexit.register(lambda: ran.append("parent"))

def about_me(name, control_fd):
    with socket.socket(fileno=control_fd) as control:
        if name == "waiting":
            control.recv(1)
            return 0
        if name == "raising":
            raise RuntimeError("planted")
        import atexit
        atexit.register(lambda: control.close())
        control.send(json.dumps({
            "descriptors": {fd: os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")
                            if os.path.exists(f"/proc/self/fd/{fd}")},
            "signals": [signal.getsignal(number) == signal.SIG_IGN for number in (signal.SIGINT, signal.SIGTERM)],
            "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "wakeup": signal.set_wakeup_fd(-1),
            "comm": Path("/proc/self/comm").read_text().strip(),
            "parent": os.getppid(),
            "path": sys.path[0],
            "loop": asyncio.run(loop_is_new()),
            "exits": ran,
            "order": os.environ["CUDA_DEVICE_ORDER"],
        }).encode())
    return 7

async def loop_is_new():
    return asyncio.get_running_loop() is not outer

async def main():
    global outer
    outer = asyncio.get_running_loop()
    outer.add_signal_handler(signal.SIGTERM, lambda: None)  # as the supervisor: with a wakeup descriptor
    process, control = starts.start("about me")
    told = json.loads(control.recv(100000))
    told["status"] = process.wait()
    raising, control2 = starts.start("raising")
    told["raising"] = raising.wait()
    killed, control3 = starts.start("waiting")
    killed.kill()
    told["killed"] = killed.wait(), killed.wait()
    for each in (control, control2, control3):
        each.close()
    return told

starts = ForkStart(about_me)
starts.start_early("waiting")
starts.start_early("early")
early, control = starts.start("early")
told = {"early": (json.loads(control.recv(100000))["comm"], early.wait())}
told |= asyncio.run(main())
starts.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    told["children"] = 0
told["pid"] = os.getpid()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    program = tmp_path_factory.mktemp("forks") / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root()},
    )
    assert done.stderr.count("RuntimeError: planted") == 1 and done.stderr.count("Traceback") == 1, done.stderr
    return json.loads(done.stdout) | {"folder": str(program.parent)}


def root() -> str:
    return str(Path(__file__).resolve().parents[2] / ".types")


def test_it_has_its_control_socket_and_no_other_descriptor(told):
    kinds = {fd: kind for fd, kind in told["descriptors"].items() if not kind.startswith("/proc/")}
    assert {kinds.pop("0"), kinds.pop("1"), kinds.pop("2")} == {"/dev/null", "pipe"}
    assert sorted(kinds.values()) == ["socket"]


def test_signals_are_the_supervisors_business(told):
    assert told["signals"] == [True, True]
    assert told["mask"] == [] and told["wakeup"] == -1


def test_it_is_a_child_with_a_name_a_loop_and_an_end_of_its_own(told):
    assert told["comm"] == "callboard-about"
    assert told["parent"] == told["pid"]
    assert told["loop"] is True
    assert told["exits"] == []
    assert told["status"] == 7 and told["raising"] == 1
    assert told["killed"] == [-signal.SIGKILL] * 2


def test_the_folder_of_the_program_is_no_place_to_import_from(told):
    assert told["path"] != told["folder"]
    assert told["order"] == "PCI_BUS_ID"


def test_early_ones_are_given_out_once_and_ended_if_nobody_wants_them(told):
    assert told["early"] == ["callboard-early", 7]
    assert told["children"] == 0


def test_it_ends_with_its_supervisor():
    """Killed, so that it cannot end anybody itself."""
    program = (
        "import os, sys, time\n"
        "from callboard.actors.forks import ForkStart\n"
        "process, control = ForkStart(lambda name, fd: time.sleep(3600)).start('sleeper')\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root()},
    )
    assert supervisor.stdout is not None
    child = os.pidfd_open(int(supervisor.stdout.readline()))
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    with os.fdopen(child) as pidfd:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(60_000), "the kernel ends it"
