"""The ledger's weights are those that the model itself says it will hold, and that packing them takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from callboard.actors.dtypes import cpu_flags
from callboard.checkpoints.model_weights import count_parameters
from callboard.checkpoints.shape import ModelShape
from callboard.models import linear
from callboard.models.registry import model_family
from callboard.topology import Arithmetic, arithmetic_of, topology_from
from callboard.topology.weights import weight_bytes_of

SMOLLM2_135M = ModelShape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5, True, 1, (2,), 134_515_008)
LLAMA_1B = ModelShape("llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, 1e-5, True, 1, (2,), 1_235_814_400)
LLAMA_8B = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 8192, 5e5, 1e-5, False, 1, (2,), 8_030_261_248)
MISTRAL_7B = ModelShape(
    "mistral", 32, 4096, 32, 8, 128, 14336, 32000, 32768, 1e4, 1e-5, False, 1, (2,), 7_241_732_096, windows=(4096,) * 32
)
QWEN2_5_0_5B = ModelShape(
    "qwen2", 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6, 1e-6, True, None, (), 494_032_768, has_qkv_bias=True
)
QWEN3_0_6B = ModelShape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, 1e-6, True, None, (), 596_049_920)
GEMMA3_270M = ModelShape(
    "gemma3",
    18,
    640,
    4,
    1,
    256,
    2048,
    262144,
    32768,
    1e6,
    1e-6,
    True,
    2,
    (1,),
    268_098_176,
    windows=(*(512,) * 5, None) * 3,
    window_rope_theta=1e4,
)
SHAPES = {
    "135M": SMOLLM2_135M,
    "1B": LLAMA_1B,
    "8B": LLAMA_8B,
    "Mistral 7B": MISTRAL_7B,
    "Qwen2.5 0.5B": QWEN2_5_0_5B,
    "Qwen3 0.6B": QWEN3_0_6B,
    "Gemma 3 270M": GEMMA3_270M,
}
CPUS = {
    "AVX-512": ({"avx2", "avx512bw", "avx512vl", "avx512dq"}, (torch.float32, torch.bfloat16), True),
    "AVX2": ({"avx2"}, (torch.float32,), True),
    "older": ({"sse4_2"}, (torch.float32,), False),
    "ARM": ({"asimd", "bf16"}, (torch.float32, torch.bfloat16), False),
}
"""Flags, what oneDNN packs, whether FBGEMM does."""


def arithmetic(dtype: str, device: str = "cpu", flags: frozenset[str] | set[str] = frozenset()) -> Arithmetic:
    topology = topology_from(
        "m", [f"model.dtype={dtype}", f"model.kv_dtype={dtype}", f"process.worker.device={device}"]
    )
    return arithmetic_of(topology, flags)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_they_are_what_the_model_plans_to_hold(monkeypatch, shape, dtype, cpu):
    flags, packed, can_pack_half = CPUS[cpu]
    monkeypatch.setattr(linear, "can_pack", lambda dtype: dtype in packed)
    monkeypatch.setattr(linear, "can_pack_half", lambda: can_pack_half)
    held = model_family(shape.architecture).planned_bytes(shape, dtype, torch.device("cpu"), shape.max_position)
    name = str(dtype).removeprefix("torch.")
    assert weight_bytes_of(shape, arithmetic(name, flags=flags), shape.max_position) == held


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_parameters_are_those_of_the_model_cards(shape):
    assert count_parameters(shape) == shape.num_parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_cpus_flags_tell_what_trying_tells(dtype):
    """On the machine at hand."""
    device = torch.device("cpu")
    of_flags = arithmetic(str(dtype).removeprefix("torch."), flags=cpu_flags())
    held = linear.held_dtype(dtype, device)
    assert (of_flags.compute_bytes, of_flags.matrix_bytes) == (
        linear.compute_dtype(dtype, device).itemsize,
        held.itemsize,
    )
    assert of_flags.is_head_copied == linear.is_packed(dtype, device)
    assert of_flags.matrix_columns == linear.held_columns(1, held)


def test_a_gpu_shares_a_tied_head_with_the_embedding():
    held = model_family("llama").planned_bytes(SMOLLM2_135M, torch.bfloat16, torch.device("cuda"), 8192)
    assert weight_bytes_of(SMOLLM2_135M, arithmetic("bfloat16", "cuda"), 8192) == held


def test_the_demo_model_in_numbers():
    """float32: 134,515,008 parameters, 49,152 rows of 576 once more, 8,192 positions with 64 cosines and 64 sines."""
    table = 8192 * 2 * 64
    assert weight_bytes_of(SMOLLM2_135M, arithmetic("float32"), 8192) == 4 * (134_515_008 + 28_311_552 + table)
    assert weight_bytes_of(SMOLLM2_135M, arithmetic("float32", "cuda:0"), 8192) == 4 * (134_515_008 + table)
    # As float16 on a CPU with AVX2 rows of 576 take 1,024: 30 layers of 5,120 such rows and 576 whole ones of 1,536.
    layers = 30 * (5120 - 512) * 1024 + 30 * 576 * 1536
    half = 2 * (49152 * 1024 + layers + 49152 * 576) + 4 * (61 * 576 + table)
    assert weight_bytes_of(SMOLLM2_135M, arithmetic("bfloat16", flags={"avx2"}), 8192) == half


PACK = """
import ctypes, torch
from callboard.models.linear import hold_linear
def resident():
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) * 1024
torch.set_num_threads(1)
for name in ("float32", "bfloat16"):
    make = lambda rows: hold_linear(torch.ones(rows, 576, dtype=getattr(torch, name)))
    make(16)  # what the libraries set up once
    before = resident()
    held = [make(8192) for _ in range(4)]
    print(resident() - before, sum(matrix.num_bytes for matrix in held))
    del held
"""


@pytest.mark.slow
def test_a_packed_matrix_takes_what_it_says():
    root = str(Path(__file__).parents[2] / ".types")
    program = f"import sys; sys.path.insert(0, {root!r})\n{PACK}"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        resident, said = map(int, line.split())
        assert said == pytest.approx(resident, rel=0.02)
