"""What the processes of an engine load: each library only where it works, for start-up and memory are made of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "numba", "rich", "scipy", "sympy", "tokenizers", "torch", "transformers")
CASES = {
    "supervisor": ("import callboard.cli.main, callboard.cli.serve", set()),
    "every child, before it knows its actors": ("import callboard.cli.child, callboard.actors.child", set()),
    "frontend": ("import callboard.actors.frontend, callboard.server", {"aiohttp"}),
    "tokenizer": ("import callboard.actors.tokenizer, callboard.text", {"tokenizers"}),
    "scheduler": ("import callboard.actors.scheduler, callboard.scheduling.scheduler", set()),
    "worker of a compiled model": (
        "import callboard.actors.worker, callboard.actors.runners, callboard.execution.runner\n"
        "import callboard.execution.compiled_forward, callboard.models.compiled_decoder",
        set(),
    ),
    "worker that computes with torch": (
        "import torch, callboard.execution.torch_forward, callboard.models.load, callboard.models.decoder\n"
        "from callboard.kernels.sampling import SamplingBatch, sample\n"
        "one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int64)\n"
        "sample(torch.ones(1, 9), SamplingBatch(one, zero + 3, one / 2, one * 0, zero, zero, zero))",
        {"torch"},
    ),
    "a caller of Engine, before it is started": ("from callboard.client import Engine; Engine('model.gguf')", set()),
}


def loaded_by(code: str) -> set[str]:
    """Top-level modules, and our own, in a fresh interpreter."""
    command = [sys.executable, "-P", "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(("code", "allowed"), CASES.values(), ids=CASES)
def test_heavy_libraries_are_loaded_where_they_work(code, allowed):
    loaded = loaded_by(code)
    assert {name for name in HEAVY if name in loaded} == allowed


def test_a_child_loads_no_actor_that_it_does_not_have():
    loaded = loaded_by(CASES["every child, before it knows its actors"][0])
    kinds = ("actors.frontend", "actors.scheduler", "actors.tokenizer", "actors.worker", "scheduling.scheduler")
    assert not loaded & {f"callboard.{kind}" for kind in kinds}


@pytest.mark.slow
def test_a_compiled_model_is_loaded_and_sampled_from_without_torch_and_compiler(smollm2_gguf):
    """The runner as a worker makes it; its warm-up samples with filters and log-probabilities. The first one of a
    version compiles."""
    code = (
        "from callboard.bench.runner_here import RunnerHere, launch_of\n"
        f"RunnerHere(launch_of({str(smollm2_gguf)!r}, dtype='int4', num_rows=1, max_len=64, max_step_tokens=64))"
    )
    loaded_by(code)
    loaded = loaded_by(code)
    assert not {name for name in HEAVY if name in loaded}
