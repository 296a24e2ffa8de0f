"""Percentiles, goodput and the other numbers of a report, and its tables and pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from callboard.cli.main import app
from callboard.errors import ConfigError
from callboard.scheduling.limits import SchedulerLimits
from callboard.simulation import Objectives, RequestHistory, StepTimes, TraceRequest, report_of, simulate
from callboard.simulation.plots import write_plots
from callboard.simulation.report import e2e_ns, goodput, tpot_ns, ttft_ns
from callboard.simulation.settings import combinations_of, limits_of
from callboard.simulation.tables import aligned, markdown, milliseconds

FOLDER = Path(__file__).parent.parent / "data"
GOLDEN = json.loads((FOLDER / "golden.json").read_text())
MS, S = 1_000_000, 1_000_000_000
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def request_of(ttft_ms: float, tpot_ms: float, num_tokens: int, reason: str = "length") -> RequestHistory:
    """Arrives at 1 s."""
    times = 1 * S + (ttft_ms + tpot_ms * np.arange(num_tokens)) * MS
    return RequestHistory(1 * S, "", 10, np.round(times).astype(np.int64), reason, 0)


@pytest.mark.parametrize(
    ("name", "ttft_ms", "tpot_ms", "num_tokens"),
    [("e2e_ttft0.3_tpot30ms_300out", 300, 30, 300), ("e2e_ttft0.5_tpot40ms_200out", 500, 40, 200)],
)
def test_golden_e2e(name: str, ttft_ms: float, tpot_ms: float, num_tokens: int) -> None:
    request = request_of(ttft_ms, tpot_ms, num_tokens)
    assert e2e_ns(request) == pytest.approx(GOLDEN[name]["value"] * S, abs=1)
    assert ttft_ns(request) == ttft_ms * MS
    assert tpot_ns(request) == pytest.approx(tpot_ms * MS)


def test_golden_goodput() -> None:
    """10 requests in 10 s, 3 fail the TTFT and 2 others the TPOT."""
    requests = [request_of(900, 10, 5)] * 3 + [request_of(100, 60, 5)] * 2 + [request_of(100, 10, 5)] * 5
    expected = GOLDEN["goodput_10req_3ttft_2tpot_10s"]["value"]
    assert goodput(requests, Objectives(ttft_ms=500, tpot_ms=50), 10.0) == expected
    assert goodput(requests, Objectives(), 10.0) == 1.0
    assert goodput([request_of(100, 10, 5, "timeout")], Objectives(), 10.0) == 0.0


def test_what_is_undefined() -> None:
    assert tpot_ns(request_of(5, 1, 1)) is None
    assert goodput([request_of(5, 1, 1)], Objectives(tpot_ms=0.001), 1.0) == 1.0
    refused = RequestHistory(0, "", 10, np.array([], np.int64), "refused", 0)
    assert (ttft_ns(refused), tpot_ns(refused), e2e_ns(refused)) == (None, None, None)
    assert ttft_ns(request_of(5, 1, 3, "timeout")) == 5 * MS
    assert e2e_ns(request_of(5, 1, 3, "timeout")) is None


def test_a_report_by_hand(make_limits: Callable[..., SchedulerLimits], affine_steps: StepTimes) -> None:
    """Two tenants, at once: a step of 10 + 20 tokens, then one of 2, then one of 1."""
    trace = [TraceRequest(0, 10, 2, "a"), TraceRequest(0, 20, 3, "b")]
    report = report_of(simulate(trace, make_limits(num_blocks=100), affine_steps), Objectives(ttft_ms=1.0))
    first, second, third = 0.15 + 1.30, 0.15 + 1.30 + 1.02, 0.15 + 1.30 + 1.02 + 1.01
    assert report.all.ttft_ms.p50 == pytest.approx(first)
    assert report.tenants["a"].e2e_ms.p50 == pytest.approx(second)
    assert report.tenants["b"].e2e_ms.p99 == pytest.approx(third)
    assert report.tenants["b"].tpot_ms.p50 == pytest.approx((1.02 + 1.01) / 2)
    assert report.all.itl_ms.p50 == pytest.approx(1.02)
    assert report.duration_s == pytest.approx(third / 1000)
    assert report.output_tokens_per_s == pytest.approx(5 / (third / 1000))
    assert report.all.goodput == 0.0
    assert report.num_steps == 3
    assert report.kv_max == pytest.approx(0.03)
    assert (report.num_preemptions, report.num_recomputed_tokens) == (0, 0)


def test_settings_and_their_combinations() -> None:
    assert combinations_of([]) == [("", {})]
    assert combinations_of(["policy=fcfs,priority", "watermark=0, 0.05"])[1] == (
        "policy=fcfs watermark=0.05",
        {"policy": "fcfs", "watermark": "0.05"},
    )
    limits = limits_of({"policy": "priority", "max_num_seqs": "7"}, num_blocks=10, max_model_len=99)
    assert (limits.policy, limits.max_num_seqs, limits.num_blocks, limits.max_model_len) == ("priority", 7, 10, 99)
    for settings, sentence in (({"polcy": "fcfs"}, "no setting 'polcy'"), ({"policy": "best"}, "Invalid enum value")):
        with pytest.raises(ConfigError, match=sentence):
            limits_of(settings, num_blocks=1, max_model_len=1)
    with pytest.raises(ConfigError, match="'watermark' is no setting"):
        combinations_of(["watermark"])


def test_tables() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "ccc   d"]
    assert markdown([["a", "b"], ["1", "2"]]) == ["| a | b |", "|---|---:|", "| 1 | 2 |"]
    assert [milliseconds(value) for value in (None, 4.926, 49.44, 1234.4)] == ["-", "4.93", "49.4", "1,234"]


def run_cli(*options: str, trace: str = "azure2023_conv_200.csv") -> str:
    command = ["simulate", "--trace", str(FOLDER / "traces" / trace), "--model-shape", str(FOLDER / "llama_3_1_8b")]
    result = CliRunner().invoke(app, [*command, "--device", "h100-sxm", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_a_report() -> None:
    lines = run_cli("--limit", "20", "--ttft-slo", "500").splitlines()
    assert lines[0].startswith("step time by roofline: h100-sxm")
    assert lines[1].startswith("20 of 20 requests complete")
    assert [line.split()[0] for line in lines[3:7]] == ["TTFT", "TPOT", "ITL", "E2E"]
    assert "TTFT <= 500 ms" in next(line for line in lines if line.startswith("goodput"))


def test_the_command_compares_as_json() -> None:
    output = run_cli(
        *("--json", "--limit", "60", "--num-blocks", "400", "--length-divisor", "2", "--speedup", "40"),
        *("--compare", "watermark=0,0.2", "--set", "max_num_seqs=32"),
    )
    found = json.loads(output)
    assert [run["settings"] for run in found] == ["watermark=0", "watermark=0.2"]
    without, with_watermark = (run["report"] for run in found)
    assert without["num_preemptions"] > with_watermark["num_preemptions"]
    assert without["all"]["num_complete"] == 60


def test_the_command_compares_as_a_table() -> None:
    lines = run_cli("--limit", "20", "--compare", "policy=fcfs,priority").splitlines()
    assert len(lines) == 5
    assert lines[3].startswith("policy=fcfs")


def test_the_command_finds_prefixes_of_a_mooncake_trace() -> None:
    (run,) = json.loads(run_cli("--json", "--limit", "30", trace="mooncake_conversation_100.jsonl"))
    assert run["report"]["prefix_hit_rate"] > 0.02


@pytest.mark.slow
def test_pictures(tmp_path: Path) -> None:
    png, svg = tmp_path / "run.png", tmp_path / "run.svg"
    run_cli("--limit", "20", "--plot", str(png), "--plot", str(svg))
    assert png.read_bytes().startswith(PNG_MAGIC)
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="matplotlib") as caught:
        write_plots(tmp_path / "run.png", [])
    assert "callboard[plots]" in str(caught.value.advice)


@pytest.mark.parametrize(("name", "sentence"), [("run.jpg", "no picture's name"), ("no/run.png", "no folder")])
def test_pictures_that_cannot_be(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        write_plots(tmp_path / name, [])
