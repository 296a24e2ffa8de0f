"""Sockets that the supervisor binds: HTTP, and the links between processes."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from callboard.actors.wiring import Wiring
from callboard.errors import ConfigError
from callboard.topology import Topology, load_topology, topology_from

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PORT = ["server.port=0"]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run directories of these tests are made in a folder with a short name."""
    with tempfile.TemporaryDirectory(prefix="cb") as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)  # type: ignore[misc]


def apart() -> Topology:
    return load_topology(EXAMPLES / "all_apart.toml", PORT)


def test_each_pair_of_neighbours_apart_gets_a_link_each_way_and_the_receiver_its_listener(folder: Path) -> None:
    wiring = Wiring(apart())
    assert wiring.bind().startswith("http://127.0.0.1:")
    pairs = {(link.sender, link.receiver) for link in wiring.links_of("tokenizer")}
    assert pairs == {
        ("frontend", "tokenizer"), ("tokenizer", "frontend"), ("tokenizer", "scheduler"), ("scheduler", "tokenizer"),
        ("tokenizer", "grammar"),
    }  # fmt: skip
    assert set(wiring.descriptors_of("tokenizer")) == {"link.frontend.tokenizer", "link.scheduler.tokenizer"}
    assert set(wiring.descriptors_of("frontend")) == {"link.tokenizer.frontend", "http.frontend"}
    assert wiring.links_of("worker") == () and wiring.descriptors_of("worker") == {}
    (run_dir,) = folder.iterdir()
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    wiring.close()
    assert list(folder.iterdir()) == []


def test_in_one_process_there_is_no_run_directory(folder: Path) -> None:
    wiring = Wiring(load_topology(EXAMPLES / "one_process.toml", PORT))
    wiring.bind()
    assert list(folder.iterdir()) == []
    wiring.close()


def test_a_taken_port_is_named_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{port}") as caught:
            Wiring(topology_from("model", [f"server.port={port}"])).bind()
    assert "--port" in caught.value.advice


def test_after_a_death_every_link_with_an_end_in_the_process_is_new(folder: Path) -> None:
    wiring = Wiring(apart())
    wiring.bind()
    before = {(link.sender, link.receiver): link.path for link in wiring.links_of("tokenizer")}
    others = wiring.listeners_of("tokenizer", wiring.links_between("tokenizer", "frontend"))
    wiring.renew("scheduler")
    after = {(link.sender, link.receiver): link.path for link in wiring.links_of("tokenizer")}
    assert {pair for pair in before if before[pair] != after[pair]} == {
        ("tokenizer", "scheduler"),
        ("scheduler", "tokenizer"),
    }
    sockets = {str(path) for run_directory in folder.iterdir() for path in run_directory.iterdir()}
    others_of = ("frontend", "grammar")
    assert sockets == set(after.values()) | {link.path for process in others_of for link in wiring.links_of(process)}
    assert wiring.listeners_of("tokenizer", wiring.links_between("tokenizer", "frontend")) == others
    fds = wiring.listeners_of("tokenizer", wiring.links_between("tokenizer", "scheduler"))
    assert list(fds) == ["link.scheduler.tokenizer"]
    with socket.socket(socket.AF_UNIX) as sender, socket.socket(fileno=os.dup(*fds.values())) as receiver:
        sender.connect(after["scheduler", "tokenizer"])
        receiver.accept()[0].close()
    wiring.close()
