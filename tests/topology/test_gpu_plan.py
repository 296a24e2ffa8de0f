"""The ledger of a topology whose worker is on a GPU: its memory only, and an estimate that leaves room."""

from __future__ import annotations

import pytest

from callboard.actors.device_memory import free_device_bytes
from callboard.bench.llama_shape import LLAMA_3_1_8B
from callboard.errors import NotEnoughMemory, StartFailed
from callboard.topology import arithmetic_of, plan_memory, topology_from
from callboard.topology.device import has_gpu

GIB = 1 << 30
BLOCK_BYTES = 16 * 128 * 1024  # 128 KiB a token


def ledger(available_bytes, **settings):
    changes = {"process.worker.device": "cuda", "model.dtype": "bfloat16", "model.kv_dtype": "bfloat16"}
    topology = topology_from("model", changes | {"model.max_model_len": "8192"} | settings)
    assert has_gpu(topology)
    return plan_memory(topology, LLAMA_3_1_8B, available_bytes, arithmetic_of(topology, ()))


def test_the_pool_gets_most_of_what_weights_and_a_step_leave():
    plan = ledger(139 * GIB)
    table_bytes = 8192 * 2 * 128 * 2
    norm_bytes = 4 * 4096 * 65
    assert plan.weight_bytes == 2 * (LLAMA_3_1_8B.num_parameters - 4096 * 65) + norm_bytes + table_bytes
    assert plan.block_bytes == BLOCK_BYTES
    assert plan.runtime_bytes == plan.board_bytes == 0, "they are in the host's memory"
    assert 0 < plan.graph_bytes < GIB
    free = 139 * GIB - plan.weight_bytes - plan.activation_bytes - plan.graph_bytes
    assert 0.9 * free < plan.kv_bytes < 0.93 * free


def test_settings_are_kept():
    assert ledger(139 * GIB, **{"kv_cache.num_blocks": "600"}).num_blocks == 600
    assert ledger(139 * GIB, **{"process.worker.graphs": "off"}).graph_bytes == 0
    with pytest.raises(NotEnoughMemory, match="does not fit"):
        ledger(16 * GIB)


def test_a_device_that_is_not_there():
    with pytest.raises(StartFailed, match="device cuda:77 cannot be asked for its memory") as caught:
        free_device_bytes("cuda:77")
    assert "nvidia-smi" in caught.value.advice
