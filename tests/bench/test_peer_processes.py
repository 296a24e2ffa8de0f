"""Peers as processes: orders by lines, loads over HTTP, failures, memory, and that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.bench.load import StreamTimes
from callboard.bench.peers.__main__ import FAMILIES, find_peers
from callboard.bench.peers.foreign_python import worker_command
from callboard.bench.peers.http_peer import HttpPeer
from callboard.bench.peers.line_peer import LinePeer
from callboard.bench.peers.peer import PeerFailed, PeerOptions
from callboard.bench.peers.points import Point
from callboard.bench.peers.process_tree import process_tree, tree_memory
from callboard.bench.peers.rounds import PeerRound, run_rounds
from callboard.bench.random_model import write_random_model

ENGINE = """
def load(arguments):
    print("noise of a library")
    def run(prompts, concurrency, output_len):
        if concurrency > 2:
            raise ValueError("too many " + arguments[0])
        return [(0.0, 1.0, 1.0 + len(prompt), output_len) for prompt in prompts]
    return run
"""
NULL_SETTINGS = ("process.worker.device=null", "process.worker.threads=1", "kv_cache.num_blocks=64")
VOCAB_SIZE = 500
GOOD = Point("c2", 2, 4, 32, 8, num_warm_up=1)
TOO_LONG = Point("long", 1, 2, 600, 8)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> PeerOptions:
    """Callboard with a null device that takes up to 512 tokens."""
    folder = tmp_path_factory.mktemp("null_model")
    write_random_model(folder, max_model_len=512, merges_letters=True)
    return PeerOptions(model=str(folder), num_threads=1, settings=NULL_SETTINGS)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[LinePeer]:
    """A started one, over an engine that invents its times."""
    (tmp_path / "engine.py").write_text(ENGINE)
    command = worker_command(Path(sys.executable), "offline_worker.py", "requests")
    peer = LinePeer("invented", [*command[:3], str(tmp_path / "engine.py"), "requests"])
    assert peer.start() > 0
    yield peer
    peer.stop()


def test_orders_and_times_go_by_lines(worker: LinePeer) -> None:
    assert worker.run([[1, 2], [3]], 2, 7) == [StreamTimes(0.0, 1.0, 3.0, 7), StreamTimes(0.0, 1.0, 2.0, 7)]


def test_an_engine_that_raises_fails_at_that_point_only(worker: LinePeer) -> None:
    with pytest.raises(PeerFailed, match="ValueError: too many requests"):
        worker.run([[1]], 3, 1)
    assert worker.run([[1]], 1, 1) == [StreamTimes(0.0, 1.0, 2.0, 1)]


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("import nothing_of_this_name")
    command = worker_command(Path(sys.executable), "offline_worker.py")[:3]
    with pytest.raises(PeerFailed, match="No module named 'nothing_of_this_name'"):
        LinePeer("broken", [*command, str(tmp_path / "engine.py")]).start()
    with pytest.raises(PeerFailed, match="ended with status 3 before it served\nno model"):
        HttpPeer("broken", lambda _: ["sh", "-c", "echo no model; exit 3"]).start()
    with pytest.raises(PeerFailed, match="cannot be started"):
        HttpPeer("absent", lambda _: [str(tmp_path / "absent")]).start()


def test_a_peer_that_is_not_installed_is_a_line(options: PeerOptions, capsys: pytest.CaptureFixture[str]) -> None:
    assert [peer.name for peer in find_peers(list(FAMILIES), options)] == ["callboard auto offline", "callboard auto"]
    assert capsys.readouterr().out.splitlines() == [
        "openvino is left out: no --openvino-python is given",
        "transformers is left out: no --transformers-python is given",
        "llama-server is left out: no --llama-server is given",
        "vllm is left out: no --vllm is given",
    ]


@pytest.mark.slow
def test_callboard_over_http_and_offline_in_alternating_rounds(options: PeerOptions) -> None:
    peers = find_peers(["callboard", "callboard-offline"], options)
    rounds: list[PeerRound] = []
    run_rounds(peers, [GOOD, TOO_LONG], 1, VOCAB_SIZE, rounds.append)
    assert [(one.peer, one.kind) for one in rounds] == [
        ("callboard auto", "http"),
        ("callboard auto offline", "offline"),
    ]
    for one in rounds:
        assert one.first_token_s is not None and one.first_token_s > 0
        assert one.memory_at_start is not None and one.memory_after_load is not None
        assert 0 < one.memory_at_start.pss_bytes <= one.memory_at_start.rss_bytes
        assert list(one.points) == ["c2"] and list(one.errors) == ["long"]
        assert "512" in one.errors["long"], "the limit that the server named"
        figures = one.points["c2"]
        assert 0 < figures.ttft_p50_ms <= figures.ttft_p99_ms and 0 <= figures.tpot_p50_ms <= figures.tpot_p99_ms
        assert figures.output_tokens_per_s > 0


def test_memory_is_that_of_the_whole_tree() -> None:
    """A process with little in it, that started one with 64 MiB."""
    holder = "block = bytearray(b'x') * (64 << 20); print('held', flush=True); input()"
    starter = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holder!r}])"
    command = [sys.executable, "-c", starter]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            tree = process_tree(process.pid)
            assert tree[0] == process.pid and len(tree) == 2 and os.getpid() not in tree
            memory = tree_memory(process.pid)
            assert memory.rss_bytes >= memory.pss_bytes >= 64 << 20
            assert tree_memory(tree[1]).pss_bytes >= 64 << 20
        finally:
            assert process.stdin is not None
            process.stdin.close()
