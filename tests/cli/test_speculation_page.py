"""The commands of docs/speculation.md start what they say."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from callboard.cli.main import app
from callboard.tests.test_readme import blocks
from callboard.topology import ensure_valid, topology_from


def test_the_commands_of_the_page_say_what_is_meant(monkeypatch: pytest.MonkeyPatch, smollm2_gguf: Path) -> None:
    found = []

    def serve(model: str, file: None, overrides: list[str], device: None) -> int:
        topology = topology_from(model, overrides)
        ensure_valid(topology)
        assert topology.speculative is not None
        found.append((topology.speculative.method, topology.speculative.max_tokens))
        return 0

    monkeypatch.setattr("callboard.cli.serve.serve_topology", serve)
    (block,) = blocks("docs/speculation.md", "sh")
    for line in block.strip().splitlines():
        name, *words = shlex.split(line)
        assert name == "callboard"
        words = [str(smollm2_gguf) if word == "MODEL" else word for word in words]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert found == [("ngram", 8), ("suffix", 12), ("draft_model", 8), ("eagle3", 8)]
