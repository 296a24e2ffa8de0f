"""docs/journal.md: its commands run, and its topology is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from callboard.bench.recorded_run import RecordedRun
from callboard.cli.main import app
from callboard.topology import load_topology

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "journal.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RecordedRun(1, tmp_path / "journal", 1 << 24).run(150)
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line.partition("#")[0]) for line in block("sh").splitlines()]
    assert len(commands) == 4
    says = ["identical", "policy=priority", "max_num_seqs=128, watermark=0.05"]
    for (program, *args), expected in zip(commands[:3], says, strict=True):
        result = CliRunner().invoke(app, args)
        assert program == "callboard" and result.exit_code == 0, result.output
        assert expected in result.output
    show = [{"5120": "20", "cmpl-1f0e": "r2"}.get(arg, arg) for arg in commands[3][1:]]
    result = CliRunner().invoke(app, show)
    assert result.exit_code == 0, str(result.exception)
    assert "since its arrival" in result.output


def test_its_topology_has_a_journal(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('[model]\nsource = "m"\n' + block("toml"))
    journal = load_topology(tmp_path / "t.toml").journal
    assert journal is not None and (journal.path, journal.max_bytes) == ("journal", 1 << 30)
