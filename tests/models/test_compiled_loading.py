"""float32 and bfloat16 models as the compiled step holds them: loaded from files, against transformers and gguf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from callboard.checkpoints import read_shape, resolve_checkpoint
from callboard.checkpoints.model_weights import model_weights
from callboard.kernels.cpu.isa import host_isa
from callboard.models.compiled_decoder import CompiledDecoder, load_compiled_model
from callboard.tests.kernels.cpu_decoders import FAMILIES, make_cache, run_steps
from callboard.tests.kernels.cpu_matrices import stored_weights
from callboard.tests.models.families import MAX_LEN, make_oracle, make_prompt, oracle_logits

pytestmark = pytest.mark.skipif(host_isa() is None, reason="this CPU has no instructions for it")

Loader = Callable[[Path, str], CompiledDecoder]
PROMPT = make_prompt(0, 63)
STEPS = [[(1, 0, PROMPT[:40])], [(1, 40, PROMPT[40:47])], *([(1, at, PROMPT[at : at + 1])] for at in range(47, 63))]
TINY = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}


@pytest.fixture(autouse=True, scope="module")
def inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def load_it() -> Iterator[Loader]:
    """(path, dtype) -> a decoder, whose threads end with the test."""
    made: list[CompiledDecoder] = []

    def load_it(path: Path, dtype: str) -> CompiledDecoder:
        checkpoint = resolve_checkpoint(str(path))
        made.append(
            load_compiled_model(checkpoint, read_shape(checkpoint), dtype, MAX_LEN, num_threads=1, activation_bits=8)
        )
        return made[-1]

    yield load_it
    for decoder in made:
        decoder.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_tokens_are_those_of_a_twin_with_the_rounded_weights(
    tmp_path: Path, load_it: Loader, name: str, dtype: str
) -> None:
    """The twin is transformers in float32, its matrices rounded by torch; norms and biases are not rounded."""
    oracle = make_oracle(name, **FAMILIES[name])
    oracle.save_pretrained(tmp_path)
    if dtype == "bfloat16":
        for parameter in oracle.parameters():
            if parameter.ndim == 2:
                parameter.copy_(parameter.bfloat16())
    decoder = load_it(tmp_path, dtype)
    logits = run_steps(decoder, make_cache(decoder.shape, np.float32), STEPS)[1]
    expected = oracle_logits(oracle, PROMPT).numpy()
    np.testing.assert_allclose(logits, expected, atol=3e-4, rtol=3e-4)
    assert logits.argmax(-1).tolist() == expected.argmax(-1).tolist()


@pytest.mark.parametrize("kind", ["Q4_K", "Q4_0", "F16"])
def test_float32_holds_every_number_of_a_file_as_the_gguf_package_reads_it(
    tmp_path: Path, load_it: Loader, kind: str
) -> None:
    """Scales are not rounded, as they are in int4."""
    path = _write_gguf(tmp_path, kind)
    weights = load_it(path, "float32").weights
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    layer = weights.layers[0]
    found = {"blk.0.ffn_down.weight": layer.down, "token_embd.weight": weights.embedding, "output.weight": weights.head}
    for name, matrix in found.items():
        expected = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        np.testing.assert_array_equal(stored_weights(matrix), expected.astype(np.float64))
    gate, up = (tensors[f"blk.0.ffn_{part}.weight"] for part in ("gate", "up"))
    expected = np.concatenate([gguf.quants.dequantize(part.data, part.tensor_type) for part in (gate, up)])
    np.testing.assert_array_equal(stored_weights(layer.gate_up), expected.astype(np.float64))


def _write_gguf(folder: Path, kind: str) -> Path:
    """A Llama of one layer; of Q4_K, which the gguf package does not write, random blocks."""
    oracle = make_oracle("llama-linear", num_hidden_layers=1, rope_parameters=None, **TINY)
    oracle.save_pretrained(folder)
    shape = read_shape(resolve_checkpoint(str(folder)))
    path, quantization, draw = folder / "tiny.gguf", gguf.GGMLQuantizationType[kind], np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(MAX_LEN)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"t{token_id}" for token_id in range(shape.vocab_size)])
    for (name, _), size in model_weights(shape).items():
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, np.float32))
        elif kind == "Q4_K":
            blocks = draw.integers(0, 256, (size[0], 144), dtype=np.uint8)
            blocks[:, :4] = draw.normal(0, 0.1, (size[0], 2)).astype(np.float16).view(np.uint8)
            writer.add_tensor(name, blocks, raw_dtype=quantization)
        else:
            values = draw.standard_normal(size).astype(np.float32)
            writer.add_tensor(name, gguf.quants.quantize(values, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
