"""Engines that share a machine, and a machine that gives little: they start, they do not disturb each other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callboard.actors.wiring import Wiring
from callboard.bench.server_process import ServerFailed, ServerProcess
from callboard.tests.e2e.null_engine import ALL_APART, Answer, Oracle, clients, null_server, run_directories, until_idle
from callboard.topology import load_topology

pytestmark = pytest.mark.slow

SERVE = (sys.executable, "-P", "-m", "callboard.cli.main", "serve")
NUM_TOKENS = 300


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TMPDIR of all engines of a test; short, for paths of sockets are."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)  # read TMPDIR again
        yield Path(folder)


def test_an_engine_that_is_killed_under_load_does_not_disturb_another(
    null_model: Path, oracle: Oracle, temporary: Path
) -> None:
    async def act(one: ServerProcess, two: ServerProcess) -> None:
        async with clients() as session:
            ours = [Answer(one.url, session, oracle.body(i, NUM_TOKENS, stream=i % 2 == 0)) for i in range(16)]
            theirs = [Answer(two.url, session, oracle.body(i, 30_000, stream=True)) for i in range(4)]
            await asyncio.gather(*(answer.begun.wait() for answer in [ours[0], *theirs]))
            os.kill(two.pid, signal.SIGKILL)
            ours += [Answer(one.url, session, oracle.body(i, NUM_TOKENS)) for i in range(16, 24)]
            await asyncio.gather(*(answer.task for answer in ours + theirs))
            for index, answer in enumerate(ours):
                assert (answer.status, answer.texts) == (200, oracle.texts(index, NUM_TOKENS))
            assert all(answer.is_cut for answer in theirs)
            await until_idle(one.url)

    with null_server(null_model, "model.served_name=a", topology=ALL_APART) as one:
        pids = sorted(one.children())
        with null_server(null_model, "model.served_name=b", topology=ALL_APART) as two:
            asyncio.run(act(one, two))
            two.wait()
        assert sorted(one.children()) == pids, "no process of it died"
        one.terminate()
        assert one.wait() == 0
        assert "process.died" not in one.log()


def test_binding_a_hundred_times_from_many_sides_never_fails(null_model: Path, temporary: Path) -> None:
    topology = load_topology(Path(ALL_APART), ["server.port=0"], source=str(null_model))

    def bind(_: int) -> str:
        wiring = Wiring(topology)
        try:
            return wiring.bind()
        finally:
            wiring.close()

    with ThreadPoolExecutor(8) as pool:
        urls = list(pool.map(bind, range(100)))
    assert all(url.startswith("http://127.0.0.1:") for url in urls)
    assert run_directories(temporary) == []


@pytest.mark.nightly
def test_fifty_engines_that_start_at_once_all_serve(
    null_model: Path, oracle: Oracle, temporary: Path, send: Callable[..., Any]
) -> None:
    servers = [null_server(null_model, topology=ALL_APART) for _ in range(50)]
    try:
        urls = [server.wait_ready() for server in servers]
        assert len(set(urls)) == 50
        for index, url in enumerate(urls):
            answer = send(f"{url}/v1/completions", oracle.body(index, 20)).json
            assert answer["choices"][0]["text"] == oracle.texts(index, 20)[0]
        for server in servers:
            server.terminate()
        assert [server.wait() for server in servers] == [0] * 50
    finally:
        for server in servers:
            server.close()
    assert run_directories(temporary) == []


def may_unshare() -> bool:
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("size", ["1m", pytest.param("64m", marks=pytest.mark.nightly)])
def test_a_dev_shm_of_a_megabyte_is_enough(
    null_model: Path, oracle: Oracle, temporary: Path, send: Callable[..., Any], size: str
) -> None:
    """Nothing is kept there. Then a request of 4 MB, longer than the context; then a good one."""
    if not may_unshare():
        pytest.skip("this machine does not allow `unshare -rm`")
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$0" "$@"'
    settings = ("--set", "process.worker.device=null", "--topology", ALL_APART)
    with ServerProcess(str(null_model), *settings, command=["unshare", "-rm", "sh", "-c", mount, *SERVE]) as server:
        large = send(f"{server.url}/v1/completions", {"prompt": "ab cd ef " * 466_000, "max_tokens": 1})
        assert (large.status, large.error["code"]) == (400, "context_length_exceeded")
        good = send(f"{server.url}/v1/completions", oracle.body(1, 20))
        assert good.json["choices"][0]["text"] == oracle.texts(1, 20)[0]
        server.terminate()
        assert server.wait() == 0


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("-f 100", "bytes of shared memory: posix_fallocate"),
        pytest.param("-n 14", "Too many open files", marks=pytest.mark.nightly),
    ],
)
def test_a_limit_that_leaves_no_room_for_the_boards_is_one_screen(
    null_model: Path, temporary: Path, limit: str, says: str
) -> None:
    """`ulimit -f`, in KiB, bounds anonymous files too."""
    command = ["bash", "-c", f'ulimit {limit}; exec "$0" "$@"', *SERVE]
    server = ServerProcess(str(null_model), "--set", "process.worker.device=null", command=command)
    with pytest.raises(ServerFailed) as caught:
        server.wait_ready()
    server.close()
    assert caught.value.status == 1
    assert "callboard could not start" in caught.value.log and says in caught.value.log
    assert "Traceback" not in caught.value.log
    assert run_directories(temporary) == []
