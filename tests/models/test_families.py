"""Each family against transformers on tiny random checkpoints: logits and greedy tokens, however the steps are cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from callboard.models.protocol import CausalLM
from callboard.models.registry import model_family
from callboard.tests.models.families import (
    CASES,
    MAX_LEN,
    VOCAB_SIZE,
    WINDOW,
    Engine,
    Loaded,
    is_greedy,
    load,
    make_oracle,
    make_prompt,
    oracle_logits,
)

PROMPT = make_prompt(0, 5 * WINDOW + 3)
PROMPTS = [make_prompt(seed, length) for seed, length in enumerate((3, WINDOW, WINDOW + 1, 40, 65))]


@pytest.fixture(scope="module", params=CASES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    with torch.inference_mode():
        return load(make_oracle(request.param), tmp_path_factory.mktemp(request.param))


def logits_of(
    model: CausalLM, token_ids: list[int], chunks: list[int], attention: Callable[..., object]
) -> torch.Tensor:
    ids, pieces, start = torch.tensor(token_ids), [], 0
    for size in chunks:
        positions = torch.arange(start, start + size)
        pieces.append(model.compute_logits(model.forward(ids[positions], positions, attention)))
        start += size
    assert start == len(token_ids)
    return torch.cat(pieces)


@pytest.mark.parametrize("chunks", [[63], [16, 16, 16, *[1] * 15]], ids=["whole", "chunks and single tokens"])
def test_logits_are_those_of_transformers(loaded, attention_factory, chunks):
    logits = logits_of(loaded.model, PROMPT, chunks, attention_factory(loaded.shape.windows))
    torch.testing.assert_close(logits, oracle_logits(loaded.oracle, PROMPT), atol=2e-4, rtol=2e-4)


def check(loaded: Loaded, prompts: list[list[int]], tokens: list[list[int]], num_tokens: int) -> None:
    for prompt, generated in zip(prompts, tokens, strict=True):
        assert len(generated) == num_tokens
        assert is_greedy(loaded.oracle, prompt, generated)


def test_greedy_tokens_of_a_mixed_batch_in_chunks_of_16(loaded):
    engine = Engine(loaded.model, max_num_batched_tokens=16)
    check(loaded, PROMPTS, engine.generate(PROMPTS, 6), 6)


def test_bytes_held_are_those_planned(loaded):
    family = model_family(loaded.shape.architecture)
    planned = family.planned_bytes(loaded.shape, torch.float32, torch.device("cpu"), MAX_LEN)
    assert loaded.model.num_weight_bytes == planned
    assert loaded.shape.num_parameters == sum(parameter.numel() for parameter in loaded.oracle.parameters())


@pytest.mark.parametrize("name", ["llama-biases", "qwen3", "gemma3"])
def test_bytes_held_in_bfloat16_are_those_planned(tmp_path, name):
    loaded = load(make_oracle(name), tmp_path, torch.bfloat16)
    family = model_family(loaded.shape.architecture)
    planned = family.planned_bytes(loaded.shape, torch.bfloat16, torch.device("cpu"), MAX_LEN)
    assert loaded.model.num_weight_bytes == planned


@pytest.mark.parametrize("name", ["mistral-window", "qwen2-window", "qwen3", "gemma3"])
def test_prefix_cache_and_preemption_change_no_token(tmp_path, name):
    """Prompts that share 36 tokens, in a pool that holds little more than one request in full."""
    loaded = load(make_oracle(name), tmp_path)
    prompts = [PROMPT[:36] + prompt for prompt in PROMPTS[:4]]
    engine = Engine(loaded.model, prefix_caching=True)
    first = engine.generate(prompts[:1], 10)
    tokens = engine.generate(prompts, 10)
    check(loaded, prompts, tokens, 10)
    assert first == tokens[:1]
    assert engine.scheduler.statistics().prefix_cache_hits >= 4 * 36
    small = Engine(loaded.model, num_blocks=32, max_num_batched_tokens=64)
    assert small.generate(prompts, 10) == tokens
    assert small.scheduler.statistics().num_preemptions > 0


@pytest.mark.nightly
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunk", [7, 16, 64, 512])
@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("num_blocks", [32, 256])
def test_full_product(loaded, chunk, depth, is_cached, num_blocks):
    prompts = [*PROMPTS, *(PROMPT[:36] + prompt for prompt in PROMPTS[:4])]
    engine = Engine(
        loaded.model,
        max_num_batched_tokens=chunk,
        pipeline_depth=depth,
        prefix_caching=is_cached,
        num_blocks=num_blocks,
    )
    for _ in range(2):
        check(loaded, prompts, engine.generate(prompts, 20), 20)


@pytest.mark.parametrize("name", ["llama-biases", "qwen3", "gemma3"])
def test_bfloat16_is_near_float32_with_the_same_rounded_weights(tmp_path, attention_factory, name):
    """As in Llama: a wrong weight moves logits by half of their spread, rounding by a few percent."""
    oracle = make_oracle(name)
    for parameter in oracle.parameters():
        parameter.copy_(parameter.bfloat16())
    loaded = load(oracle, tmp_path, torch.bfloat16)
    logits = logits_of(loaded.model, PROMPT, [len(PROMPT)], attention_factory(loaded.shape.windows))
    expected = oracle_logits(oracle, PROMPT)
    assert (logits - expected).abs().mean() < 0.04 * expected.std()


def test_shards_are_read_as_one_file_is(tmp_path, attention_factory):
    oracle = make_oracle("gemma3")
    loaded = load(oracle, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    logits = logits_of(loaded.model, PROMPT, [len(PROMPT)], attention_factory(loaded.shape.windows))
    torch.testing.assert_close(logits, oracle_logits(oracle, PROMPT), atol=2e-4, rtol=2e-4)


def test_a_window_matters(tmp_path, attention_factory):
    """The check itself can fail: without its windows the same model says something else."""
    loaded = load(make_oracle("gemma3"), tmp_path)
    logits = logits_of(loaded.model, PROMPT, [len(PROMPT)], attention_factory())
    expected = oracle_logits(loaded.oracle, PROMPT)
    assert logits.shape == (len(PROMPT), VOCAB_SIZE)
    torch.testing.assert_close(logits[:WINDOW], expected[:WINDOW], atol=2e-4, rtol=2e-4)
    assert (logits[WINDOW:] - expected[WINDOW:]).abs().max() > 0.1
