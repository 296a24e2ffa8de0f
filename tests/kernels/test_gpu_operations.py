"""Whole decoders by the GPU's operations: the runner of a device, with kernels, beside plain torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from callboard.checkpoints import resolve_checkpoint
from callboard.execution.device.cuda import CudaDevice
from callboard.execution.device.kernel_sampler import KernelStepSampler
from callboard.execution.device.limits import RunnerLimits
from callboard.execution.device.runner import DeviceRunner
from callboard.execution.device.sampler_choice import MakeSampler
from callboard.execution.device.seam import Device, HostDevice
from callboard.execution.device.step_sampler import TorchStepSampler
from callboard.kernels.device_operations import TorchOperations
from callboard.kernels.gpu.linear_choice import MAX_ROWS
from callboard.kernels.gpu.operations import GpuOperations, LayerSizes
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.models.device_form import load_device_decoder
from callboard.tests.kernels.gpu import DEVICE, IS_INTERPRETED
from callboard.tests.models.families import Engine, load, make_oracle, make_prompt

MAX_LEN = 64
LAYERS = {"num_hidden_layers": 2, "max_position_embeddings": MAX_LEN}


def device() -> Device:
    return HostDevice() if IS_INTERPRETED else CudaDevice(DEVICE)


def runner_of(path: Path, shape: object, operations: object, num_rows: int, make_sampler: MakeSampler) -> DeviceRunner:
    with torch.inference_mode():
        checkpoint = resolve_checkpoint(str(path))
        decoder = load_device_decoder(checkpoint, shape, torch.float32, DEVICE, operations, MAX_LEN)
    limits = RunnerLimits(num_rows, 80, MAX_LEN, 2)
    runner = DeviceRunner(
        decoder, device(), limits, num_blocks=128, block_size=8, kv_dtype=torch.float32, make_sampler=make_sampler
    )
    runner.pool.tensors.tensor.fill_(torch.nan)
    return runner


def operations_of(shape: object, max_tokens: int) -> GpuOperations:
    sizes = LayerSizes(shape.hidden_size, shape.intermediate_size, shape.num_heads, shape.num_kv_heads, shape.head_dim)
    return GpuOperations(sizes, max_tokens, torch.float32, DEVICE)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llama-biases", "qwen3", "gemma3"])
@pytest.mark.parametrize("num_wishes", [0, 2])
def test_tokens_are_those_of_plain_torch(name, num_wishes, tmp_path):
    settings = {**LAYERS, "layer_types": ["sliding_attention", "full_attention"]} if name == "gemma3" else LAYERS
    with torch.inference_mode():
        loaded = load(make_oracle(name, **settings), tmp_path)
    prompts = [make_prompt(seed, length) for seed, length in enumerate((30, 40))]
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 80, "block_size": 8, "num_blocks": 127, "pipeline_depth": 2}
    tokens = []
    sampling = [
        SamplingParams(seed=3, temperature=1.1, top_p=0.9, logprobs=2),
        SamplingParams(seed=4, temperature=0.0, frequency_penalty=1.0, logit_bias=((5, 1.5),)),
    ]
    for operations, make_sampler in (
        (TorchOperations(), TorchStepSampler),
        (operations_of(loaded.shape, 80), KernelStepSampler),
    ):
        engine = Engine(loaded.model, **limits, max_model_len=MAX_LEN)
        engine.runner = runner_of(tmp_path, loaded.shape, operations, 4, make_sampler)
        tokens.append(engine.generate(prompts, 4, sampling[:num_wishes]))
    assert tokens[1] == tokens[0]
    assert sum(map(len, prompts)) > MAX_ROWS  # so that the prompts' step was one of many rows
