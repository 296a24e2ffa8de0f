"""docs/simulator.md: its commands run, its device and its trace are read, its tables are those of the code."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from callboard.cli.main import app
from callboard.simulation import DEVICES, find_device, read_trace
from callboard.simulation.trace_files import OwnLine

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "simulator.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> str:
    return "".join(block for kind, block in BLOCK.findall(PAGE) if kind == language)


def commands() -> list[list[str]]:
    return [shlex.split(line)[1:] for line in blocks("sh").replace("\\\n", "").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [pytest.param(words, id=words[-1]) for words in commands()])
def test_the_commands_run(
    arguments: list[str],
    make_journal: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("requests.jsonl").write_text(blocks("json"))
    shutil.copytree(ROOT / "tests" / "data" / "llama_3_1_8b", "Llama-3.1-8B")
    make_journal(tmp_path).rename("JOURNAL-FILE")
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "2 of 2 requests complete" in result.output or '"num_complete": 2' in result.output


def test_the_device_and_the_trace_are_read(tmp_path: Path) -> None:
    device, trace = tmp_path / "mine.toml", tmp_path / "own.jsonl"
    device.write_text(blocks("toml"))
    assert find_device(str(device)).name == "mine"
    trace.write_text(blocks("json"))
    assert [request.tenant for request in read_trace(trace)] == ["shop", "search"]


def test_every_field_of_an_own_trace_is_told() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {field.encode_name for field in msgspec.structs.fields(OwnLine)} <= named


def test_the_devices_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\S+)` \| ([\d.]+) (\w)B/s \| ([\d.]+) (\w)FLOP/s \|", PAGE, re.MULTILINE)
    scale = {"G": 1e9, "T": 1e12}
    found = {name: (float(a) * scale[b], float(c) * scale[d]) for name, a, b, c, d in rows}
    assert found.keys() == DEVICES.keys()
    for name, (bandwidth, flops) in found.items():
        assert (bandwidth, flops) == pytest.approx((DEVICES[name].bandwidth, DEVICES[name].flops), rel=0.005)
