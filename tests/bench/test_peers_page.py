"""docs/peers.md: its commands are understood, its shapes and peers are those of the code, and a table comes out."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.bench.peers.__main__ import FAMILIES, options_of, parse_arguments
from callboard.bench.peers.points import POINTS
from callboard.bench.random_model import write_random_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "peers.md").read_text()
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = "python -m callboard.bench.peers "


def test_the_commands_of_the_page_are_understood() -> None:
    commands = [block.replace("\\\n", "").strip() for block in BLOCK.findall(PAGE)]
    assert len(commands) == 2 and all(command.startswith(COMMAND) for command in commands)
    alone, everything = (options_of(parse_arguments(shlex.split(c.removeprefix(COMMAND)))) for c in commands)
    assert alone.llama_server is alone.openvino_python is alone.vllm is alone.hf_dir is None
    assert None not in (everything.llama_server, everything.openvino_python, everything.vllm, everything.hf_dir)
    assert [path.name for path in everything.openvino_models] == ["ov_int4", "ov_int8"]


def test_the_load_shapes_of_the_page_are_those_that_are_run() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+)(?:, the first (\d+) alike)? \| ([\d,]+) ", PAGE, re.M
    )
    on_the_page = [(name, *(int(number.replace(",", "") or 0) for number in numbers)) for name, *numbers in rows]
    assert on_the_page == [
        (p.name, p.concurrency, p.num_requests, p.input_len, p.shared_prefix_len, p.output_len) for p in POINTS
    ]
    assert f"`{' '.join(FAMILIES)}`" in PAGE


def test_a_point_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["model", "--points", "c1,c5"])
    assert "unknown points c5; there are c1,c4,c16,c32,shared,long,startup" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_the_table(tmp_path: Path) -> None:
    write_random_model(tmp_path, max_model_len=512, merges_letters=True)
    words = [str(tmp_path), "--peers", "callboard", "vllm", "--points", "startup", "--rounds", "1"]
    settings = ["--set", "process.worker.device=null", "--set", "process.worker.threads=1"]
    command = [
        sys.executable,
        "-P",
        "-m",
        "callboard.bench.peers",
        *words,
        *settings,
        "--json",
        str(tmp_path / "f.jsonl"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "vllm is left out: no --vllm is given" in done.stdout
    assert "## Over HTTP" in done.stdout and "## Offline" not in done.stdout
    assert re.search(r"^\| callboard auto \| \d+\.\d\d \| \d+ \| \d+ \|$", done.stdout, re.MULTILINE)
    assert len((tmp_path / "f.jsonl").read_text().splitlines()) == 1
