"""The page on GPUs: its commands name what there is; the figures are those of the results."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from callboard.cli.serve import read_topology

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text()
RESULTS = (ROOT / "bench" / "results" / "2026-11-30-h200.md").read_text()
COMMANDS = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("callboard serve")])
def test_a_start_says_what_a_topology_takes(line: str) -> None:
    words = shlex.split(line)[3:]
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options.keys() <= {"--device", "--set"}
    worker = read_topology(None, "m", [options["--set"]] if "--set" in options else [], options["--device"]).process[-1]
    assert worker.device == options["--device"]
    assert worker.graphs == ("eager" if "--set" in options else "lazy")


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("python -m ")])
def test_a_benchmark_has_the_options(line: str) -> None:
    module, *words = shlex.split(line)[2:]
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text()
    for option in (word for word in words if word.startswith("--")):
        assert f'add_argument("{option}"' in source


def test_the_figures_are_those_of_the_results() -> None:
    """A line of the page has the 8B's and Qwen3's columns of a line of the results."""
    lines = re.findall(r"^\| (\d+) \|(.*)\|$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for rows, cells in lines:
        figures = [cell.strip() for cell in cells.split("|")]
        (measured,) = re.findall(rf"^\| {rows} \|(.*)\|$", RESULTS.partition("## Between")[0], re.MULTILINE)
        of_results = [cell.strip() for cell in measured.split("|")]
        assert figures == of_results[:3] + of_results[6:]
