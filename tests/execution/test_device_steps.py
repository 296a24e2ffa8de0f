"""The device's path on the CPU, step by step beside the torch path, and beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from callboard.checkpoints import resolve_checkpoint
from callboard.execution.device.limits import RunnerLimits, useful_buckets
from callboard.execution.device.runner import DeviceRunner
from callboard.kernels.device_operations import TorchOperations
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.models.device_decoder import DeviceDecoder
from callboard.models.device_form import load_device_decoder
from callboard.tests.execution.late_device import LateDevice
from callboard.tests.models.families import (
    BLOCK_SIZE,
    CASES,
    MAX_LEN,
    WINDOW,
    Engine,
    Loaded,
    is_greedy,
    load,
    make_oracle,
    make_prompt,
)

PROMPTS = [make_prompt(seed, length) for seed, length in enumerate((3, WINDOW, WINDOW + 1, 40, 65))]
NUM_TOKENS = 8


class Both(NamedTuple):
    """One checkpoint, as torch computes it and as a device does."""

    loaded: Loaded
    decoder: DeviceDecoder


def load_both(name: str, path: Path, dtype: torch.dtype = torch.float32) -> Both:
    with torch.inference_mode():
        loaded = load(make_oracle(name), path, dtype)
        checkpoint = resolve_checkpoint(str(path))
        cpu = torch.device("cpu")
        return Both(loaded, load_device_decoder(checkpoint, loaded.shape, dtype, cpu, TorchOperations(), MAX_LEN))


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return load_both(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return load_both("qwen3", tmp_path_factory.mktemp("qwen3"))


def device_engine(both: Both, device: LateDevice | None = None, graphs: str = "lazy", **limits: object) -> Engine:
    """An engine whose runner is the device's."""
    engine = Engine(both.loaded.model, **limits)
    bounds = engine.scheduler.limits
    runner = DeviceRunner(
        both.decoder,
        device or LateDevice(),
        RunnerLimits(bounds.max_num_seqs, bounds.max_num_batched_tokens, MAX_LEN, bounds.pipeline_depth),
        num_blocks=bounds.num_blocks,
        block_size=BLOCK_SIZE,
        kv_dtype=torch.float32,
        graphs=graphs,  # type: ignore[arg-type]
    )
    runner.pool.tensors.tensor.fill_(torch.nan)  # a slot that is read unwritten shows up in every token
    engine.runner = runner
    return engine


def test_greedy_tokens_are_those_of_transformers(both):
    tokens = device_engine(both, pipeline_depth=2, max_num_batched_tokens=48).generate(PROMPTS, NUM_TOKENS)
    with torch.inference_mode():
        for prompt, generated in zip(PROMPTS, tokens, strict=True):
            assert is_greedy(both.loaded.oracle, prompt, generated)


def test_bytes_held_count_a_tied_head_once(both):
    held = {id(tensor): tensor.nbytes for tensor in both.decoder.weights.vectors()}
    assert both.decoder.num_weight_bytes >= sum(held.values())
    oracle_bytes = sum(parameter.nbytes for parameter in both.loaded.oracle.parameters())
    assert abs(both.decoder.num_weight_bytes - oracle_bytes) < 0.2 * oracle_bytes  # tables; head norms a head each


@pytest.fixture(scope="module")
def many(qwen3: Both) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, some of which begin alike, and their tokens on the torch path."""
    prompts = [*PROMPTS, PROMPTS[3][:36] + PROMPTS[0], PROMPTS[4], PROMPTS[3]]
    return prompts, Engine(qwen3.loaded.model, max_num_batched_tokens=128).generate(prompts, 14)


@pytest.mark.parametrize(("depth", "limits"), [
    (1, {"max_num_batched_tokens": 64}),
    (2, {"num_blocks": 40, "max_num_batched_tokens": 32}),
    (3, {"num_blocks": 40, "max_num_batched_tokens": 64}),
    (2, {"max_num_seqs": 3, "prefix_caching": True, "max_num_batched_tokens": 64}),
], ids=["all at once", "preemption", "preemption, depth 3", "rows used again, prefix hits"])  # fmt: skip
def test_rows_that_come_and_go(qwen3, many, depth, limits):
    prompts, expected = many
    assert device_engine(qwen3, pipeline_depth=depth, **limits).generate(prompts, 14) == expected


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_with_wishes_beside_greedy_ones(qwen3, depth):
    sampling = [
        SamplingParams(seed=5, temperature=1.2, top_p=0.9),
        SamplingParams(seed=0, temperature=0.0),
        SamplingParams(seed=7, temperature=0.8, repetition_penalty=1.5, frequency_penalty=0.5),
        SamplingParams(seed=0, temperature=0.0, presence_penalty=1.0, logit_bias=((7, 2.5),)),
    ]
    limits = {"max_num_batched_tokens": 64}
    engines = (Engine(qwen3.loaded.model, **limits), device_engine(qwen3, pipeline_depth=depth, **limits))
    expected, tokens = (engine.generate(PROMPTS, 6, sampling) for engine in engines)
    assert tokens == expected


def test_bfloat16_tokens_are_near_those_of_float32(tmp_path):
    """Their logits differ by rounding: where the torch path and the device's part, the oracle's best two are close."""
    both = load_both("llama-biases", tmp_path, torch.bfloat16)
    tokens = device_engine(both).generate(PROMPTS, 4)
    with torch.inference_mode():
        for prompt, generated in zip(PROMPTS, tokens, strict=True):
            logits = both.loaded.oracle(torch.tensor([prompt]), use_cache=False).logits[0, -1].float()
            assert logits.max() - logits[generated[0]] < 0.1 * logits.std()


def test_a_decode_step_tells_the_device_only_what_changed(qwen3):
    device = LateDevice()
    engine = device_engine(qwen3, device, max_num_batched_tokens=64)
    engine.generate([PROMPTS[1]], 2)
    before = device.num_copies_in
    engine.generate([PROMPTS[1]], 1 + 2 * BLOCK_SIZE)
    # The prompt's step, the first decode step, and one for each block that the row gets.
    assert device.num_copies_in - before == 2 + 2 - (len(PROMPTS[1]) % BLOCK_SIZE == 0)


@pytest.mark.parametrize("graphs", ["lazy", "eager", "off"])
def test_recorded_steps_give_the_same_tokens(qwen3, graphs):
    device = LateDevice(records=True)
    engine = device_engine(qwen3, device, graphs)
    if graphs == "eager":
        engine.runner.warm_up()
        assert device.num_records == 2 * len(useful_buckets(8))
    tokens = engine.generate(PROMPTS, NUM_TOKENS)
    assert tokens == Engine(qwen3.loaded.model).generate(PROMPTS, NUM_TOKENS)
    assert (device.num_replays > 0) == (graphs != "off")
    if graphs == "lazy":
        while engine.runner.use_idle_time():
            pass
        assert 0 < device.num_records <= 2 * len(useful_buckets(8))
        assert not engine.runner.use_idle_time()


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8, 64, 256, 300, 700])
def test_buckets_hold_all_rows_and_no_more_than_they_must(max_num_seqs):
    buckets = useful_buckets(max_num_seqs)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] >= max_num_seqs
    assert len(buckets) == 1 or buckets[-2] < max_num_seqs


def test_warm_up_leaves_an_empty_batch(qwen3):
    engine = device_engine(qwen3)
    engine.runner.warm_up()
    assert not engine.runner.batch.is_used.any()
    assert engine.generate(PROMPTS, 3) == Engine(qwen3.loaded.model).generate(PROMPTS, 3)


def test_log_probabilities_are_those_of_the_torch_path(qwen3, plan_maker):
    prompts = {0: PROMPTS[1], 1: PROMPTS[3], 2: PROMPTS[2]}
    results = []
    for engine in (Engine(qwen3.loaded.model), device_engine(qwen3, max_num_batched_tokens=128)):
        maker = type(plan_maker)(num_blocks=64)
        for row, prompt in prompts.items():
            maker.place(row, prompt, logprobs=row, prompt_logprobs=2)
        results.append(engine.runner.run(maker.plan([(row, 0, len(prompt), True) for row, prompt in prompts.items()])))
    expected, result = results
    for field in ("runs", "positions", "token_ids", "logprob_rows", "top_ids"):
        assert getattr(result, field) == getattr(expected, field)
    for ours, theirs in (
        (result.logprobs, expected.logprobs),
        (result.top_logprobs, expected.top_logprobs),
        (result.prompt_logprobs.logprobs, expected.prompt_logprobs.logprobs),
    ):
        np.testing.assert_allclose(np.frombuffer(ours, np.float32), np.frombuffer(theirs, np.float32), atol=2e-5)
