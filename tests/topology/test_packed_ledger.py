"""The ledger of models in packed form against the model that was loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from callboard.actors import dtypes
from callboard.actors.launch import prepare_launch
from callboard.kernels.cpu.isa import host_isa
from callboard.models.compiled_decoder import CompiledDecoder, load_compiled_model
from callboard.topology import topology_from
from callboard.topology.activations import StepLimits
from callboard.topology.compiled import compiled_buffer_bytes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or host_isa() is None, reason="this CPU has no instructions for it"),
]


@pytest.mark.parametrize("dtype", ["int4", "int8", "bfloat16", "float32"])
def test_weights_and_buffers_are_what_the_ledger_says_to_the_byte(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(dtypes, "cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"}))  # bfloat16 not by torch
    ready = prepare_launch(topology_from(str(smollm2_gguf), [f"model.dtype={dtype}", "model.max_model_len=512"]))
    model = load_compiled_model(
        ready.checkpoint, ready.shape, dtype, ready.max_model_len, num_threads=2, activation_bits=8
    )
    try:
        assert model.num_weight_bytes == ready.ledger.weight_bytes
        limits = StepLimits(
            max_num_seqs=50,
            max_num_batched_tokens=300,
            max_model_len=512,
            block_size=16,
            pool_tokens=10_000,
            num_threads=2,
        )
        assert _buffer_bytes(model, num_tokens=300, num_logit_rows=50) == compiled_buffer_bytes(ready.shape, limits)
    finally:
        model.close()


def _buffer_bytes(model: CompiledDecoder, num_tokens: int, num_logit_rows: int) -> int:
    """Of everything that a step of this size makes the model hold."""
    model._ensure(num_tokens)
    model.compute_logits(torch.zeros(num_logit_rows, model.shape.hidden_size))
    buffers = model._buffers
    arrays = [buffers.hidden, buffers.qkv, buffers.wide, buffers.narrow, model._logits]
    arrays += [part for part in buffers.rows if isinstance(part, np.ndarray)]
    arrays += [array for scratch in model._scratch for array in scratch.value]
    return sum(array.nbytes for array in arrays)
