"""The ledger's weights are those that the model itself says it will hold."""

from __future__ import annotations

import msgspec
import pytest
import torch

from callboard.checkpoints.shape import ModelShape
from callboard.models import linear
from callboard.models.registry import model_class
from callboard.topology import max_model_len_of, plan_memory, topology_from

SMOLLM2_135M = ModelShape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5, True, 1, (2,), 134_515_008)
LLAMA_1B = ModelShape("llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, 1e-5, True, 1, (2,), 1_235_814_400)
LLAMA_8B = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 8192, 5e5, 1e-5, False, 1, (2,), 8_030_261_248)
PACKED = {"native": (torch.float32, torch.bfloat16), "not native": (torch.float32,)}


def ledger_weights(shape: ModelShape, dtype: torch.dtype, device: str) -> int:
    topology = topology_from("m")
    *others, worker = topology.process
    worker = msgspec.structs.replace(worker, device=device)
    topology = msgspec.structs.replace(topology, process=(*others, worker))
    size = dtype.itemsize
    return plan_memory(topology, shape, 1 << 40, dtype_bytes=size, kv_dtype_bytes=size).weight_bytes


@pytest.mark.parametrize("bfloat16", PACKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [SMOLLM2_135M, LLAMA_1B, LLAMA_8B], ids=["135M", "1B", "8B"])
def test_on_a_cpu_they_are_within_5_percent(monkeypatch, shape, dtype, bfloat16):
    monkeypatch.setattr(linear, "can_pack", lambda dtype: dtype in PACKED[bfloat16])
    monkeypatch.setattr(linear, "can_pack_half", lambda: True)
    held = model_class("llama").planned_bytes(
        shape, dtype, torch.device("cpu"), max_model_len_of(topology_from("m"), shape)
    )
    assert ledger_weights(shape, dtype, "cpu") == pytest.approx(held, rel=0.05)


def test_a_gpu_shares_a_tied_head_with_the_embedding():
    held = model_class("llama").planned_bytes(SMOLLM2_135M, torch.bfloat16, torch.device("cuda"), 8192)
    assert ledger_weights(SMOLLM2_135M, torch.bfloat16, "cuda") == pytest.approx(held, rel=0.05)


def test_the_demo_model_in_numbers():
    """float32: 134,515,008 parameters, 49,152 rows of 576 once more, 8,192 positions with 64 cosines and 64 sines."""
    assert ledger_weights(SMOLLM2_135M, torch.float32, "cpu") == 4 * (134_515_008 + 28_311_552 + 1_048_576)
    assert ledger_weights(SMOLLM2_135M, torch.float32, "cuda:0") == 4 * (134_515_008 + 1_048_576)
