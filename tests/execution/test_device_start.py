"""The start of a runner on a device: what is measured, what the pool gets of it, and what is said where it is too
little. The device's memory is a list of numbers, so that the expected ones can be worked out by hand."""

from __future__ import annotations

import pytest
import torch

from callboard.checkpoints import resolve_checkpoint
from callboard.errors import NotEnoughMemory
from callboard.execution.device.limits import RunnerLimits
from callboard.execution.device.seam import HostDevice
from callboard.execution.device.start import start_runner
from callboard.execution.device.start_plans import blocks_of_largest_step, largest_step
from callboard.kernels.device_operations import TorchOperations
from callboard.models.device_form import load_device_decoder
from callboard.tests.models.families import MAX_LEN, Engine, load, make_oracle, make_prompt
from callboard.topology.schema import KVCacheSection

LIMITS = RunnerLimits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=MAX_LEN, pipeline_depth=2)
PROBE_BLOCKS = 4  # 61 tokens beside three rows of one, in blocks of 16
BLOCK_BYTES = 16 * 2 * 2 * 24 * 4 * 4  # tokens, keys and values, heads, head_dim, layers, float32
REQUEST_BLOCKS = MAX_LEN // 16


class MeasuredDevice(HostDevice):
    """Says one free size after the other."""

    def __init__(self, *free_bytes: int) -> None:
        self._free_bytes = list(free_bytes)

    def free_bytes(self) -> int:
        return self._free_bytes.pop(0)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    with torch.inference_mode():
        return load(make_oracle("qwen3"), path), str(path)


@pytest.fixture
def start(loaded):
    shape, path = loaded[0].shape, loaded[1]

    def load_decoder():
        with torch.inference_mode():
            cpu = torch.device("cpu")
            return load_device_decoder(resolve_checkpoint(path), shape, torch.float32, cpu, TorchOperations(), MAX_LEN)

    def run(free_blocks, num_blocks=0, load=load_decoder, agree=None, **section):
        """Weights take 1,000 bytes, the largest step 500, and the pool finds room for `free_blocks`."""
        at_first = 1500 + free_blocks * BLOCK_BYTES
        probe_bytes = (PROBE_BLOCKS + 1) * BLOCK_BYTES
        device = MeasuredDevice(at_first, at_first - 1000, at_first - 1500 - probe_bytes, 7)
        settings = KVCacheSection(block_size=16, **section)
        others = {} if agree is None else {"agree": agree}
        return start_runner(load, device, LIMITS, settings, torch.float32, "lazy", num_blocks, **others)

    return run


def test_the_largest_step_fills_the_budget():
    plan = largest_step(LIMITS, 16)
    assert sum(memoryview(plan.num_tokens).cast("i")) == LIMITS.max_num_batched_tokens
    assert blocks_of_largest_step(LIMITS, 16) == PROBE_BLOCKS


@pytest.mark.parametrize(("section", "num_blocks"), [
    ({}, int(200 * 0.92) - 1),
    ({"memory_share": 0.5}, 99),
    ({"num_blocks": 30}, 30),
    ({"memory_bytes": 40 * BLOCK_BYTES + 5}, 40),
])  # fmt: skip
def test_the_pool_is_what_the_topology_wants_of_what_is_left(start, section, num_blocks):
    runner, plan = start(200, **section)
    assert (plan.weight_bytes, plan.step_bytes, plan.graph_bytes) == (1000, 500, 0)
    assert plan.free_bytes == 200 * BLOCK_BYTES
    assert plan.num_blocks == runner.pool.num_blocks == num_blocks


def test_a_rank_that_comes_back_has_the_pool_of_its_engine(start):
    runner, _ = start(200, num_blocks=77)
    assert runner.pool.num_blocks == 77


def test_ranks_have_the_pool_of_the_one_with_the_least_room(start):
    said = []
    runner, plan = start(200, agree=lambda num_blocks: said.append(num_blocks) or 150)
    assert said == [int(200 * 0.92) - 1]
    assert plan.num_blocks == runner.pool.num_blocks == 150


def test_the_runner_runs(start, loaded):
    runner, _ = start(200)
    engine = Engine(
        loaded[0].model, block_size=16, num_blocks=runner.pool.num_blocks, max_num_seqs=4, max_num_batched_tokens=64
    )
    engine.runner = runner
    prompts = [make_prompt(seed, length) for seed, length in enumerate((5, 40))]
    expected = Engine(loaded[0].model, max_num_batched_tokens=64).generate(prompts, 5)
    assert engine.generate(prompts, 5) == expected


@pytest.mark.parametrize(("free_blocks", "section", "says", "advice"), [
    (20, {"num_blocks": 21}, "21 blocks does not fit", "to 19 blocks"),
    (20, {"memory_bytes": 20 * BLOCK_BYTES}, "20 blocks does not fit", "to 19 blocks"),
    (REQUEST_BLOCKS, {}, f"max_model_len {MAX_LEN} needs {REQUEST_BLOCKS}", "lower [model] max_model_len to 96"),
    (-3, {}, "the KV pool has 0 blocks", "max_num_batched_tokens"),
])  # fmt: skip
def test_too_little_memory_is_an_error_with_the_ledger(start, free_blocks, section, says, advice):
    with pytest.raises(NotEnoughMemory, match=r"weights 1000 B \+ largest step 500 B") as caught:
        start(free_blocks, **section)
    assert says in str(caught.value)
    assert advice in caught.value.advice


def test_a_device_that_is_full_before_the_pool_is_made(start):
    def load():
        raise torch.OutOfMemoryError("tried to allocate 3 GiB")

    with pytest.raises(NotEnoughMemory, match=r"were free at the start.*3 GiB") as caught:
        start(10, load=load)
    assert "max_num_seqs" in caught.value.advice
