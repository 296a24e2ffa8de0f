"""A decoder's compiled step against transformers: families, formats, chunks, rows side by side, threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from callboard.models.compiled_decoder import CompiledDecoder
from callboard.tests.kernels.cpu_decoders import (
    FAMILIES,
    make_cache,
    pack_decoder,
    round_matrices,
    round_rows,
    run_steps,
)
from callboard.tests.models.families import WINDOW, Loaded, load, make_oracle, make_prompt, oracle_logits

PROMPT = make_prompt(0, 5 * WINDOW + 3)


@pytest.fixture(autouse=True, scope="module")
def inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(make_oracle(request.param, **FAMILIES[request.param]), tmp_path_factory.mktemp(request.param))


@pytest.fixture
def pack_it() -> Iterator[object]:
    """(oracle, shape, bits, num_threads=1, activation_bits=8) -> a decoder, whose threads end with the test."""
    made: list[CompiledDecoder] = []

    def pack_it(*arguments: object, num_threads: int = 1, activation_bits: int = 8) -> CompiledDecoder:
        made.append(pack_decoder(*arguments, num_threads, activation_bits))  # type: ignore[arg-type]
        return made[-1]

    yield pack_it
    for decoder in made:
        decoder.close()


def in_chunks(row: int, tokens: list[int], sizes: list[int]) -> list[list[tuple[int, int, list[int]]]]:
    """One step a chunk."""
    starts = np.cumsum([0, *sizes])
    assert starts[-1] == len(tokens)
    return [[(row, int(start), tokens[start : start + size])] for start, size in zip(starts, sizes, strict=False)]


CHUNKS = {"whole": [63], "odd chunks": [1, 7, 20, 2, 33], "chunks and single tokens": [41, 16, *[1] * 6]}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_logits_are_those_of_transformers(loaded, pack_it, chunks):
    cache = make_cache(loaded.shape, np.float32)
    logits = run_steps(pack_it(loaded.oracle, loaded.shape, 32), cache, in_chunks(1, PROMPT, chunks))
    expected = oracle_logits(loaded.oracle, PROMPT).numpy()
    np.testing.assert_allclose(logits[1], expected, atol=3e-4, rtol=3e-4)


def mixed_steps(prompts: list[list[int]]) -> list[list[tuple[int, int, list[int]]]]:
    """Rows that prefill, that go on with a chunk and that decode, in the same steps."""
    a, b, c = prompts
    steps = [[(2, 0, a[:10])], [(2, 10, a[10:31]), (0, 0, b[:1])], [(0, 1, b[1:3]), (2, 31, a[31:32]), (3, 0, c[:33])]]
    steps += [
        [(3, 33 + i, c[33 + i : 34 + i]), (2, 32 + i, a[32 + i : 33 + i]), (0, 3 + i, b[3 + i : 4 + i])]
        for i in range(4)
    ]
    return steps


def test_rows_of_a_step_do_not_see_each_other(loaded, pack_it):
    prompts = [make_prompt(seed, length) for seed, length in ((1, 36), (2, 7), (3, 37))]
    cache = make_cache(loaded.shape, np.float32)
    logits = run_steps(pack_it(loaded.oracle, loaded.shape, 32), cache, mixed_steps(prompts))
    for row, prompt in zip((2, 0, 3), prompts, strict=True):
        expected = oracle_logits(loaded.oracle, prompt).numpy()
        np.testing.assert_allclose(logits[row], expected, atol=3e-4, rtol=3e-4)


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_threads_and_neighbours_change_no_bit(tmp_path, pack_it, bits):
    """One row alone in one thread, and the same beside others in two and three: equal to the last bit, as far as its
    own chunks are the same."""
    oracle = make_oracle("qwen3", head_dim=32)
    shape = load(oracle, tmp_path).shape
    prompts = [make_prompt(seed, length) for seed, length in ((1, 36), (2, 7), (3, 37))]
    steps = mixed_steps(prompts)
    alone = [[piece for piece in step if piece[0] == 2] for step in steps]
    expected = run_steps(pack_it(oracle, shape, bits), make_cache(shape, np.uint16), alone)[2]
    assert np.isfinite(expected).all()
    for num_threads in (1, 2, 3):
        decoder = pack_it(oracle, shape, bits, num_threads=num_threads)
        logits = run_steps(decoder, make_cache(shape, np.uint16), steps)
        assert np.array_equal(logits[2], expected), num_threads


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("cache_dtype", [np.uint16, np.float32])
def test_how_a_prompt_is_cut_changes_no_bit(tmp_path, pack_it, bits, cache_dtype):
    """As long as no part is a single token, whose keys are read where they lie: sums are in another order there."""
    oracle = make_oracle("qwen3", head_dim=32)
    shape = load(oracle, tmp_path).shape
    decoder = pack_it(oracle, shape, bits)
    whole = run_steps(decoder, make_cache(shape, cache_dtype), in_chunks(1, PROMPT, [63]))[1]
    for sizes in ([2, 7, 20, 2, 32], [61, 2], [16, 16, 16, 15]):
        assert np.array_equal(run_steps(decoder, make_cache(shape, cache_dtype), in_chunks(1, PROMPT, sizes))[1], whole)
    tokens = run_steps(decoder, make_cache(shape, cache_dtype), in_chunks(1, PROMPT, [1] * 63))[1]
    np.testing.assert_allclose(tokens, whole, atol=3e-4 if cache_dtype == np.float32 else 0.1, rtol=3e-4)


FORMATS = {(32, np.uint16): 0.01, (16, np.float32): 1e-5, (8, np.float32): 0.06, (4, np.float32): 0.06}
"""(bits of a weight, type of the cache) -> the largest error, root mean square, in standard deviations of the logits.

The oracle has the same rounded weights. So bfloat16 weights cost nothing, a bfloat16 cache 2⁻⁹ of its numbers, and
integer weights, whose rows are rounded too, up to 1/254 of a group's largest number."""


@pytest.mark.parametrize(("bits", "dtype"), FORMATS)
@pytest.mark.parametrize("name", ["llama-biases", "qwen3", "gemma3"])
def test_rounded_weights_rows_and_caches_stay_near(tmp_path, pack_it, name, bits, dtype):
    """A wrong weight moves logits by about their spread."""
    oracle = make_oracle(name, **FAMILIES[name])
    round_matrices(oracle, bits)
    shape = load(oracle, tmp_path).shape
    decoder = pack_it(oracle, shape, bits)
    logits = run_steps(decoder, make_cache(shape, dtype), in_chunks(0, PROMPT, [40, 7, *[1] * 16]))[0]
    expected = oracle_logits(oracle, PROMPT).numpy()
    error = np.sqrt(np.mean((logits - expected) ** 2)) / expected.std()
    assert error < FORMATS[bits, dtype]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("activation_bits", [8, 15])
@pytest.mark.parametrize("name", ["llama-biases", "qwen3", "gemma3"])
def test_integer_formats_are_transformers_with_rounded_weights_and_rows(tmp_path, pack_it, name, bits, activation_bits):
    """But for numbers that fall to the other side of a step, since float32 sums have another order: few of 8 bits do,
    so that most prompts are equal as in float32. At 15 bits some always do, by a step that is no longer than theirs."""
    oracle = make_oracle(name, **FAMILIES[name])
    round_matrices(oracle, bits)
    shape = load(oracle, tmp_path).shape
    decoder = pack_it(oracle, shape, bits, activation_bits=activation_bits)
    prompts = [make_prompt(seed, 5) for seed in range(15)]
    cache = make_cache(shape, np.float32)
    logits = [run_steps(decoder, cache, in_chunks(0, prompt, [3, 1, 1]))[0] for prompt in prompts]
    round_rows(oracle, activation_bits)
    expected = [oracle_logits(oracle, prompt).numpy() for prompt in prompts]
    errors = [np.abs(one - other).max() for one, other in zip(logits, expected, strict=True)]
    assert np.median(errors) < (2e-5 if activation_bits == 8 else 1e-3)
    assert max(errors) < (0.2 if activation_bits == 8 else 2e-3)
