"""The topology of a MODEL without a file, by device."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from callboard.cli.serve import read_topology
from callboard.client import Engine
from callboard.errors import ConfigError
from callboard.topology import check, ensure_valid, expand_actors, find_device, topology_from


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that shows an NVIDIA GPU."""
    glob = Path.glob
    monkeypatch.setattr(
        Path, "glob", lambda path, what: [path / "nvidia3"] if what.startswith("nvidia") else glob(path, what)
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_on_a_cpu_it_is_the_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = topology_from("m", device="cpu")
    assert expand_actors(topology) == {
        "control": ("frontend", "tokenizer", "scheduler", "grammar"),
        "worker": ("worker",),
    }
    assert (topology.scheduler.max_num_seqs, topology.scheduler.max_num_batched_tokens) == (64, 2048)


def test_on_a_gpu_actors_stand_apart_and_steps_are_large() -> None:
    topology = topology_from("m", ["scheduler.max_num_seqs=32", "process.worker.graphs=eager"], device="cuda:1")
    assert expand_actors(topology) == {
        name: (name,) for name in ("frontend", "tokenizer", "scheduler", "grammar", "worker")
    }
    assert (topology.scheduler.max_num_seqs, topology.scheduler.max_num_batched_tokens) == (32, 8192)
    worker = topology.process[-1]
    assert (worker.device, worker.graphs) == ("cuda:1", "eager")


def test_null_keeps_the_processes_of_a_cpu() -> None:
    assert [process.name for process in topology_from("m", device="null").process] == ["control", "worker"]


@pytest.mark.usefixtures("gpu")
def test_auto_takes_a_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "cuda" if find_spec("triton") else "cpu"
    assert find_device("auto") == expected
    assert find_device("cpu") == "cpu"
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert find_device("auto") == "cpu"


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda path, what: [])
    assert find_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (["kv_cache.block_size=24"], "block_size = 24; allowed: a power of two on a GPU"),
        (
            ["model.dtype=bfloat16", "model.kv_dtype=float32"],
            "kv_dtype = .float32., dtype = .bfloat16.",
        ),
    ],
)
def test_what_the_kernels_of_a_gpu_do_not_read_is_refused(settings: list[str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        ensure_valid(topology_from("m", settings, device="cuda"), None)
    ensure_valid(topology_from("m", settings), None)


def test_a_file_has_its_own_device(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[model]\nsource = "m"\n')
    with pytest.raises(ConfigError, match="--device is for a start without a file"):
        read_topology(file, None, (), "cpu")
    with pytest.raises(ConfigError, match="a topology has its own"):
        Engine(file, device="cpu")
    assert Engine("m", device="cuda").topology.process[-1].device == "cuda"


def test_a_grammar_backend_that_is_not_installed_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["structured_output.backend=xgrammar"]
    monkeypatch.setattr(check, "find_spec", lambda name: None if name == "xgrammar" else find_spec(name))
    with pytest.raises(ConfigError, match=r'backend = "xgrammar", which is not installed.*pip install xgrammar'):
        ensure_valid(topology_from("m", settings), None)
    ensure_valid(topology_from("m", []), None)
