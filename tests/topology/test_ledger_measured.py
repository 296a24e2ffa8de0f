"""The memory ledger against a worker that loads the model, touches its KV cache and runs the largest step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.kernels.cpu.isa import host_isa
from callboard.tests.models.families import make_oracle

STEP = Path(__file__).with_name("largest_step.py")
ROOT = Path(__file__).parents[2]

# (model, dtype, rows, token budget, length); pools hold every row in full
SMALL = [
    ("tiny", "float32", 16, 512, 2048),
    ("tiny", "bfloat16", 16, 512, 2048),
]
LARGE = [
    *SMALL,
    ("tiny", "float32", 64, 64, 512),  # decoding rows alone, but one
    ("SmolLM2", "float32", 8, 256, 1024),
    ("SmolLM2", "bfloat16", 8, 256, 1024),
    ("SmolLM2", "float32", 32, 2048, 2048),
    ("SmolLM2", "bfloat16", 2, 1024, 4096),
]


def measure(path: str, model: Path, dtype: str, rows: int, budget: int, length: int) -> dict[str, tuple[int, int]]:
    """Line of the ledger -> (what it says, what was counted)."""
    settings = [
        f"model.dtype={dtype}",
        f"scheduler.max_num_seqs={rows}",
        f"scheduler.max_num_batched_tokens={budget}",
        f"model.max_model_len={length}",
        f"kv_cache.num_blocks={rows * length // 16}",
    ]
    places = f"import sys; sys.path.insert(0, {str(ROOT / '.types')!r}); "
    program = f"{places}from callboard.tests.topology.largest_step import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, path, str(model), *settings], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {line: (says, counted) for line, (says, counted) in json.loads(done.stdout.splitlines()[-1]).items()}


def check(counted: dict[str, tuple[int, int]], estimates: tuple[str, ...]) -> None:
    print({line: [round(size / 2**20, 2) for size in sizes] for line, sizes in counted.items()})
    for line in ("weights", "KV cache"):
        says, is_there = counted[line]
        assert says == is_there, line
    for line in estimates:
        says, is_there = counted[line]
        assert says == pytest.approx(is_there, rel=0.05), line


@pytest.mark.slow
@pytest.mark.parametrize(("model", "dtype", "rows", "budget", "length"), SMALL)
def test_what_can_be_counted_is_as_the_ledger_says(tiny_llama_dir, model, dtype, rows, budget, length):
    check(measure("torch", tiny_llama_dir, dtype, rows, budget, length), ("activations",))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["mistral-window", "qwen2", "qwen3", "gemma3-gguf"])
def test_activations_of_every_family_are_as_the_ledger_says(tmp_path, name, dtype):
    """Rows of a length at which windows hide much, and masks are much of it."""
    make_oracle(name, max_position_embeddings=2048, sliding_window=256).save_pretrained(tmp_path)
    check(measure("torch", tmp_path, dtype, 16, 512, 2048), ("activations",))


@pytest.mark.nightly
@pytest.mark.parametrize(("model", "dtype", "rows", "budget", "length"), LARGE)
def test_a_worker_takes_what_the_ledger_says(smollm2_gguf, tiny_llama_dir, model, dtype, rows, budget, length):
    """The process as a whole, too: interpreter, libraries, and what the allocator keeps."""
    path = tiny_llama_dir if model == "tiny" else smollm2_gguf
    check(measure("torch", path, dtype, rows, budget, length), ("activations", "process"))


@pytest.mark.nightly
@pytest.mark.skipif(host_isa() is None, reason="this CPU has no instructions for it")
@pytest.mark.parametrize(("model", "dtype", "rows", "budget", "length"), LARGE)
def test_a_worker_with_the_compiled_step_takes_what_the_ledger_says(
    smollm2_gguf, tiny_llama_dir, model, dtype, rows, budget, length
):
    path = tiny_llama_dir if model == "tiny" else smollm2_gguf
    check(measure("compiled", path, dtype, rows, budget, length), ("process",))
