"""The commands of docs/ranks.md start what they say."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from callboard.cli.main import app
from callboard.cli.serve import read_topology
from callboard.tests.test_readme import blocks
from callboard.topology import ensure_valid, expand_actors
from callboard.topology.plan import num_threads_of, worker_process


def test_the_commands_of_the_page_say_what_is_meant(monkeypatch: pytest.MonkeyPatch, smollm2_gguf: Path) -> None:
    found = []

    def serve(model: str, file: None, overrides: list[str], device: str | None) -> int:
        topology = read_topology(file, model, overrides, device)
        if device is None:
            ensure_valid(topology)
        ranks = [name for name in expand_actors(topology) if name.startswith("worker.")]
        found.append((ranks, topology.model.dtype, num_threads_of(worker_process(topology), 8)))
        return 0

    monkeypatch.setattr("callboard.cli.serve.serve_topology", serve)
    for line in "".join(blocks("docs/ranks.md", "sh")).strip().splitlines():
        name, *words = shlex.split(line)
        assert name == "callboard"
        words = [str(smollm2_gguf) if word == "MODEL" else word for word in words]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert found == [
        (["worker.0", "worker.1", "worker.2"], "auto", 2),
        (["worker.0", "worker.1"], "bfloat16", 4),
        (["worker.0", "worker.1"], "auto", 4),
        (["worker.0", "worker.1"], "auto", 4),
    ]
