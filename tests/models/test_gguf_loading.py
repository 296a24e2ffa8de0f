"""GGUF files written by the gguf package: every stored type, llama.cpp's order of rows, damage."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from callboard.checkpoints.gguf_file import read_gguf
from callboard.checkpoints.shape import Checkpoint
from callboard.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel
from callboard.models.gguf_loader import open_gguf
from callboard.models.load import load_model

CPU = torch.device("cpu")
TOKENS = torch.tensor([1, 17, 42, 99, 3, 158, 0, 64])
KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
BLOCKS_OF_256 = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,)}
"""Type -> where in a block its float16 numbers are; the gguf package can read but not write these."""


def load(path, oracle, progress=None):
    return load_model(Checkpoint("here", "gguf", str(path), "tiny"), oracle.shape, torch.float32, CPU, 64, progress)


def dequantized(tensor, kind):
    """What the gguf package makes of the tensor after storing it as `kind`."""
    quantization = gguf.GGMLQuantizationType[kind]
    if tensor.dim() == 1 or kind == "F32":
        return tensor.float()
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), quantization), quantization))


def read_whole(stored):
    return torch.cat([rows.float().clone() for _, rows in stored.pieces()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece_elements", [1, 5000, 1 << 20])
def test_tensors_are_those_of_the_model_dequantized(
    gqa_oracle, tmp_path, gguf_writer, tensors_of, monkeypatch, kind, piece_elements
):
    monkeypatch.setattr("callboard.models.tensors._PIECE_ELEMENTS", piece_elements)
    path = tmp_path / "tiny.gguf"
    gguf_writer(path, gqa_oracle, kind)
    stored = open_gguf(str(path), gqa_oracle.shape)
    expected = tensors_of(gqa_oracle)
    assert stored.keys() == expected.keys()
    for name, tensor in expected.items():
        assert stored[name].shape == tuple(tensor.shape)
        assert torch.equal(read_whole(stored[name]), dequantized(tensor, kind)), name


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_on_the_dequantized_weights(
    oracle, tmp_path, gguf_writer, tensors_of, attention_factory, kind
):
    path = tmp_path / "tiny.gguf"
    gguf_writer(path, oracle, kind)
    model = load(path, oracle)
    oracle.model.load_state_dict({n: dequantized(t, kind) for n, t in tensors_of(oracle).items()}, strict=False)
    logits = model.compute_logits(model.forward(TOKENS, torch.arange(len(TOKENS)), attention_factory()))
    torch.testing.assert_close(logits, oracle.model(TOKENS[None]).logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", BLOCKS_OF_256)
def test_blocks_of_256_load_as_the_gguf_package_reads_them(gqa_oracle, tmp_path, monkeypatch, kind):
    """Random bytes as the matrices of a file; pieces of three rows."""
    monkeypatch.setattr("callboard.models.tensors._PIECE_ELEMENTS", 3 * 512)
    quantization, draw = gguf.GGMLQuantizationType[kind], np.random.default_rng(0)
    block_bytes = gguf.GGML_QUANT_SIZES[quantization][1]
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    for name in ("output.weight", "blk.0.ffn_down.weight"):
        blocks = draw.integers(0, 256, (10 * 2, block_bytes), dtype=np.uint8)
        for at in BLOCKS_OF_256[kind]:
            blocks[:, at : at + 2] = draw.normal(0, 0.1, 20).astype(np.float16).view(np.uint8).reshape(-1, 2)
        writer.add_tensor(name, blocks.reshape(10, -1), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = open_gguf(str(tmp_path / "tiny.gguf"), gqa_oracle.shape)
    for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors:
        name = {"output.weight": "lm_head.weight"}.get(tensor.name, "model.layers.0.mlp.down_proj.weight")
        assert stored[name].shape == (10, 512)
        expected = torch.from_numpy(gguf.quants.dequantize(tensor.data, quantization))
        assert torch.equal(read_whole(stored[name]), expected)


def test_progress_rises_to_the_bytes_of_all_tensors(gqa_oracle, tmp_path, gguf_writer):
    path, seen = tmp_path / "tiny.gguf", []
    gguf_writer(path, gqa_oracle, "F32")
    load(path, gqa_oracle, lambda done, total: seen.append((done, total)))
    total = 4 * gqa_oracle.shape.num_parameters
    assert {each for _, each in seen} == {total}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1][0] == total


def test_a_missing_tensor_is_named(gqa_oracle, tmp_path, gguf_writer, tensors_of):
    tensors = tensors_of(gqa_oracle)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    gguf_writer(tmp_path / "tiny.gguf", gqa_oracle, "F16", tensors)
    with pytest.raises(CorruptCheckpoint, match=r"has no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path / "tiny.gguf", gqa_oracle)


def test_a_layer_too_many_is_named(gqa_oracle, tmp_path, gguf_writer, tensors_of):
    tensors = tensors_of(gqa_oracle)
    tensors["model.layers.3.input_layernorm.weight"] = torch.ones(96)
    gguf_writer(tmp_path / "tiny.gguf", gqa_oracle, "F16", tensors)
    with pytest.raises(CorruptCheckpoint, match=r"does not know: blk\.3\.attn_norm\.weight"):
        load(tmp_path / "tiny.gguf", gqa_oracle)


def test_a_wrong_shape_is_named_with_both_shapes(gqa_oracle, tmp_path, gguf_writer, tensors_of):
    tensors = tensors_of(gqa_oracle)
    tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(96, 64)
    gguf_writer(tmp_path / "tiny.gguf", gqa_oracle, "F32", tensors)
    with pytest.raises(
        CorruptCheckpoint, match=r"layers\.0\.mlp\.down_proj\.weight has shape \[96, 64\].* asks for \[96, 96\]"
    ):
        load(tmp_path / "tiny.gguf", gqa_oracle)


def test_a_type_that_is_not_supported_is_refused_with_the_list(gqa_oracle, tmp_path, gguf_writer):
    gguf_writer(tmp_path / "tiny.gguf", gqa_oracle, "MXFP4")
    with pytest.raises(UnsupportedModel, match=r"has type MXFP4.*Q4_K"):
        load(tmp_path / "tiny.gguf", gqa_oracle)


@pytest.mark.parametrize("missing_bytes", [1, 1000, 100_000])
def test_a_file_cut_off_in_its_weights_is_refused(gqa_oracle, tmp_path, gguf_writer, missing_bytes):
    path = tmp_path / "tiny.gguf"
    gguf_writer(path, gqa_oracle, "F32")
    # the last tensor ends before the padding that the writer adds, so leave out that much more
    end = max(tensor.offset + tensor.num_bytes for tensor in read_gguf(str(path)).tensors.values())
    path.write_bytes(path.read_bytes()[: end - missing_bytes])
    with pytest.raises(CorruptCheckpoint, match="truncated"):
        load(path, gqa_oracle)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<html>not found</html>"])
def test_what_is_no_gguf_file_is_refused(gqa_oracle, tmp_path, content):
    (tmp_path / "tiny.gguf").write_bytes(content)
    with pytest.raises(CorruptCheckpoint):
        load(tmp_path / "tiny.gguf", gqa_oracle)


def test_a_missing_file_is_refused(gqa_oracle, tmp_path):
    with pytest.raises(ModelNotFound, match=r"nowhere\.gguf"):
        load(tmp_path / "nowhere.gguf", gqa_oracle)
