"""Which of the two paths, torch or the compiled step, computes a model; and both against reference outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from callboard.actors import dtypes
from callboard.bench.reference import load_references
from callboard.bench.runner_here import RunnerHere, launch_of
from callboard.bench.teacher_forcing import write_greedily
from callboard.checkpoints import read_shape, resolve_checkpoint
from callboard.execution.compiled_forward import CompiledForward
from callboard.execution.torch_forward import TorchForward
from callboard.kernels.cpu.isa import host_isa
from callboard.topology import topology_from

AVX2 = frozenset({"avx2", "fma", "f16c"})
REFERENCES = Path(__file__).parents[1] / "data" / "smollm2_reference.jsonl"
NUM_TOKENS = 24

needs_instructions = pytest.mark.skipif(host_isa() is None, reason="this CPU has no instructions for it")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A runner that is made here sets those of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def set_flags(monkeypatch: pytest.MonkeyPatch, flags: frozenset[str]) -> None:
    monkeypatch.setattr(dtypes, "cpu_flags", lambda: flags)


def runner_of(model: Path, dtype: str, num_rows: int = 2, max_len: int = 64) -> RunnerHere:
    sizes = {"num_rows": num_rows, "max_len": max_len, "max_step_tokens": num_rows * max_len}
    return RunnerHere(launch_of(str(model), dtype=dtype, num_threads=1, **sizes))


@pytest.mark.parametrize(
    ("dtype", "device", "flags", "reason"),
    [
        ("float32", "cpu", AVX2, None),
        ("bfloat16", "cpu", AVX2, None),
        ("int8", "cpu", AVX2, None),
        ("float32", "cpu", AVX2 | {"avx512_bf16"}, None),
        ("bfloat16", "cpu", AVX2 | {"avx512_bf16"}, "multiplies bfloat16"),
        ("bfloat16", "cpu", AVX2 | {"amx_bf16"}, "multiplies bfloat16"),
        ("float32", "cpu", AVX2 - {"f16c"}, "no AVX2"),
        ("float32", "cuda:0", AVX2, "for device cpu"),
        ("float32", "null", AVX2, "for device cpu"),
    ],
)
def test_the_step_is_compiled_where_the_cpu_can_and_torch_is_not_faster(
    tiny_llama_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    device: str,
    flags: frozenset[str],
    reason: str | None,
) -> None:
    set_flags(monkeypatch, flags)
    settings = [f"model.dtype={dtype}", "model.kv_dtype=float32", f"process.worker.device={device}"]
    topology = topology_from(str(tiny_llama_dir), settings)
    obstacle = dtypes.compiled_obstacle(topology, read_shape(resolve_checkpoint(str(tiny_llama_dir))))
    assert obstacle is None if reason is None else reason in str(obstacle)


@needs_instructions
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_worker_takes_the_path_that_was_chosen_and_says_so_if_it_is_torch(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    set_flags(monkeypatch, AVX2)
    assert isinstance(runner_of(tiny_llama_dir, dtype)._runner.forward, CompiledForward)
    assert "computes_with_torch" not in capsys.readouterr().err
    set_flags(monkeypatch, frozenset())
    assert isinstance(runner_of(tiny_llama_dir, dtype)._runner.forward, TorchForward)
    log = capsys.readouterr().err
    assert log.count("worker.computes_with_torch") == 1
    assert f"dtype={dtype} reason='the CPU has no AVX2 with FMA'" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [pytest.param(AVX2, marks=needs_instructions), frozenset()], ids=["compiled", "torch"]
)
def test_both_paths_write_the_reference_outputs_in_float32(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, flags: frozenset[str]
) -> None:
    """A few short ones; over HTTP all are compared, through the path of the machine at hand."""
    set_flags(monkeypatch, flags)
    references = sorted(load_references(REFERENCES), key=lambda reference: len(reference.prompt_ids))[:4]
    runner = runner_of(smollm2_gguf, "float32", num_rows=len(references), max_len=128)
    written = write_greedily(runner, [reference.prompt_ids for reference in references], NUM_TOKENS)
    for reference, row in zip(references, written.tolist(), strict=True):
        certain = min(reference.num_certain, NUM_TOKENS)
        assert row[:certain] == reference.output_ids[:certain], reference.name
    assert sum(min(reference.num_certain, NUM_TOKENS) for reference in references) >= 2 * NUM_TOKENS
