"""The profile of a decode step: floors by hand, published sizes, medians, and a tiny model from end to end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from callboard.bench.bandwidth import read_bandwidth
from callboard.bench.cpu_step import main, profile_lines, profile_rows, sweep_rows
from callboard.bench.dummy_shapes import CONFIGS, write_config
from callboard.bench.processor_clock import ProcessorClock
from callboard.bench.random_model import write_random_model
from callboard.bench.step_floor import kv_bytes, plain_matrix_bytes
from callboard.bench.step_times import Options, Phase, Profile, Step, measure, summarize
from callboard.checkpoints import read_shape, resolve_checkpoint
from callboard.checkpoints.model_weights import count_parameters
from callboard.kernels.cpu.step_arguments import PHASES

PUBLISHED = {"Qwen2.5-0.5B": 494_032_768, "TinyLlama-1.1B": 1_100_048_384, "Llama-3.2-3B": 3_212_749_824}
"""Parameters, as the models' own pages state them."""
TINY = Options(num_rows=(1, 3), context=9, num_steps=4, prompt_len=20, num_prompts=1, num_threads=1)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A runner that is made here sets those of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def profile(steps: tuple[Step, ...]) -> Profile:
    return Profile(
        model="m",
        dtype="int4",
        num_threads=2,
        load_s=1.5,
        bandwidth=2e9,
        matrix_bytes=8_000_000,
        mean_context=64.0,
        prompt_len=100,
        prompt_ms=50.0,
        steps=steps,
    )


def test_the_shapes_have_the_sizes_of_the_published_models(tmp_path: Path) -> None:
    for name, config in CONFIGS.items():
        shape = read_shape(resolve_checkpoint(write_config(tmp_path / name, config)))
        assert count_parameters(shape) == PUBLISHED[name]


def test_bytes_of_matrices_and_of_the_cache(tmp_path: Path) -> None:
    """SmolLM2-like arithmetic by hand: 2 layers of 64 wide, 4 heads of 16, 2 key heads, 128 within, 257 tokens."""
    write_random_model(tmp_path)
    shape = read_shape(resolve_checkpoint(str(tmp_path)))
    layer = 64 * (64 + 32 + 32) + 64 * 64 + 2 * 64 * 128 + 128 * 64
    assert plain_matrix_bytes(shape, 2) == 2 * (2 * layer + 257 * 64)
    assert kv_bytes(shape, 3, 10, 2) == 2 * 2 * (2 * 16) * 2 * 3 * 10


def test_medians_and_what_is_outside() -> None:
    """Of three steps the slowest does not count; outside is a median of differences."""
    phases = np.zeros((3, len(PHASES)))
    phases[:, PHASES.index("qkv")] = [1.0, 2.0, 90.0]
    phases[:, PHASES.index("head")] = [3.0, 1.0, 1.0]
    step = summarize(4, np.array([5.0, 4.0, 100.0]), phases, {"qkv": 100, "head": 50, "attention": 25.0})
    found = {phase.name: (phase.median_ms, phase.num_bytes) for phase in step.phases}
    assert found["qkv"] == (2.0, 100) and found["head"] == (1.0, 50) and found["norms"] == (0.0, 0)
    assert (step.num_rows, step.median_ms, step.outside_ms, step.num_bytes) == (4, 5.0, 1.0, 175.0)
    assert step.tokens_per_s == 800.0


def test_without_phases_all_of_a_step_is_outside() -> None:
    step = summarize(1, np.array([5.0, 4.0, 6.0]), np.zeros((3, 0)), {"matrices": 100})
    assert (step.phases, step.outside_ms, step.num_bytes) == ((), 5.0, 100)


def test_the_table() -> None:
    """2 GB/s: 8 MB take 4 ms, and 2 rows no less than that: 500 tokens/s at most."""
    phases = (Phase("norms", 0.5, 0), Phase("qkv", 4.5, 8e6))
    rows = profile_rows(profile((Step(1, 6.0, 1.0, phases, 8e6), Step(2, 8.0, 3.0, phases, 8e6))))
    assert rows == [
        ["int4, ms", "1 row", "floor", "2 rows", "floor"],
        ["norms", "0.50", "", "0.50", ""],
        ["qkv", "4.50", "4.00", "4.50", "4.00"],
        ["outside", "1.00", "", "3.00", ""],
        ["step", "6.00", "4.00", "8.00", "4.00"],
        ["tokens/s", "167", "250", "250", "500"],
    ]


def test_the_table_of_a_sweep() -> None:
    whole = profile((Step(1, 8.0, 8.0, (), 8e6), Step(16, 16.0, 16.0, (), 8e6)))
    head, line = sweep_rows([whole])
    assert head[3:6] == ["tokens/s, 1 row", "tokens/s, 16 rows", "ceiling, 1 row"]
    assert line == ["m", "int4", "8", "125.0", "1,000.0", "250.0", "2,000", "1.5"]
    assert profile_lines(whole)[-1] == "one prompt of 100 tokens: 50.0 ms, 2,000 tokens/s"


def test_bandwidth_and_clock_are_of_this_machine() -> None:
    """Nothing reads below a megabyte a second or above 100 TB/s, and no counter runs below 1 MHz or above 100 GHz."""
    clock = ProcessorClock()
    assert 1e6 < read_bandwidth(2, num_bytes=1 << 20, num_rounds=2) < 1e14
    assert 1e-11 < clock.seconds_per_unit() < 1e-6


LAYERS = 2 * (64 * 128 + 64 * 64 + 3 * 64 * 128)
"""Weights of the matrices in the two layers of a tiny model."""
HEAD = 272 * 64
"""Of its head, whose 257 rows fill 17 panels of 16."""


@pytest.mark.parametrize(
    ("dtype", "num_bytes", "kv_element"),
    [("int4", LAYERS * 5 / 8 + HEAD * 9 / 8, 2), ("float32", 4 * (LAYERS + HEAD), 4)],
)
def test_a_tiny_model(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, num_bytes: float, kv_element: int
) -> None:
    """Steps have 11 to 14 tokens of context, 2 layers of 2 key heads of 16, keys and values."""
    monkeypatch.setattr("callboard.bench.step_times.read_bandwidth", lambda num_threads: 1e9)
    found = measure(str(tiny_llama_dir), dtype, TINY, "tiny")
    assert (found.model, found.dtype, found.num_threads, found.bandwidth) == ("tiny", dtype, 1, 1e9)
    assert (found.matrix_bytes, found.mean_context) == (num_bytes, 12.5)
    assert [step.num_rows for step in found.steps] == [1, 3]
    for step in found.steps:
        assert step.num_bytes == num_bytes + 2 * 2 * 2 * 16 * kv_element * step.num_rows * 12.5
        assert tuple(phase.name for phase in step.phases) == PHASES
        assert all(phase.median_ms > 0 for phase in step.phases)
        assert sum(phase.num_bytes for phase in step.phases) == step.num_bytes
        assert 0 < step.outside_ms <= step.median_ms
    assert found.prompt_ms > 0


def test_a_tiny_model_that_torch_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 8 are not compiled. There are no phases, and rows are not filled up."""
    monkeypatch.setattr("callboard.bench.step_times.read_bandwidth", lambda num_threads: 1e9)
    write_random_model(tmp_path, hidden_size=32)
    found = measure(str(tmp_path), "float32", TINY)
    assert found.matrix_bytes == 4 * (2 * (32 * 64 + 32 * 32 + 3 * 32 * 128) + 257 * 32)
    for step in found.steps:
        assert step.phases == () and step.outside_ms == step.median_ms > 0


def test_the_command(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A small sweep with the model's own configuration, as a table; then the model itself, as JSON."""
    monkeypatch.setattr("callboard.bench.step_times.read_bandwidth", lambda num_threads: 1e9)
    config = json.loads((tiny_llama_dir / "config.json").read_text())
    monkeypatch.setitem(CONFIGS, "tiny", config)
    sizes = ["--rows", "1,2", "--context", "8", "--steps", "2", "--prompt", "8", "--threads", "1"]
    monkeypatch.setattr("sys.argv", ["cpu_step", "--sweep", "--shapes", "tiny", *sizes])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[-2:]] == [["tiny", "int4"], ["tiny", "bfloat16"]]
    monkeypatch.setattr("sys.argv", ["cpu_step", str(tiny_llama_dir), *sizes, "--dtypes", "int4", "--json"])
    main()
    (found,) = json.loads(capsys.readouterr().out)
    assert found["dtype"] == "int4"
    assert [step["num_rows"] for step in found["steps"]] == [1, 2]
    assert [phase["name"] for phase in found["steps"][0]["phases"]] == list(PHASES)


def test_the_commands_of_the_page_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cpu_profile.md").read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    seen = []
    for name in ("_print_sweep", "_print_profiles"):
        monkeypatch.setattr(f"callboard.bench.cpu_step.{name}", lambda *arguments, as_json: seen.append(arguments))
    for command in block.splitlines():
        words = command.split()
        assert words[:3] == ["python", "-m", "callboard.bench.cpu_step"]
        monkeypatch.setattr("sys.argv", words[2:])
        main()
    (model, dtypes, options), (shapes, swept_dtypes, _) = seen
    assert (model, dtypes, options.num_rows) == ("MODEL", ["auto"], (1, 4, 16, 32))
    assert (list(shapes), swept_dtypes) == (list(CONFIGS), ["int4", "bfloat16"])
