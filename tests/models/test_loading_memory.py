"""Loading never holds two copies: measured in a process of its own, by the kernel's count of its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from callboard.checkpoints import Checkpoint, read_shape
from callboard.checkpoints.model_weights import model_weights
from callboard.models.dummy_weights import open_dummy

MIB = 1 << 20
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 8_000, "hidden_size": 768, "intermediate_size": 2048,
    "num_hidden_layers": 5, "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
LARGEST_MATRIX = 8_000 * 768 * 4
"""The head, which for a moment is in memory both as it came and as it is packed; the allocator may keep that room."""


def write_dummy(folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def write_safetensors(folder: Path) -> str:
    """Three shards with an index, of three dtypes."""
    shape = read_shape(Checkpoint("x", "dummy", write_dummy(folder), "x"))
    stored = open_dummy({names[1]: size for names, size in model_weights(shape).items()})
    weight_map = {name: f"model-{index % 3}.safetensors" for index, name in enumerate(stored)}
    for index, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16)):
        shard = f"model-{index}.safetensors"
        kept = {n: s.read_rows(0, s.shape[0]).to(dtype) for n, s in stored.items() if weight_map[n] == shard}
        save_file(kept, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return str(folder)


def write_gguf(path: Path) -> str:
    """Matrices of Q6_K, any bytes with zero scales; embedding and head in F16."""
    shape = read_shape(Checkpoint("x", "dummy", write_dummy(path.parent / "config"), "x"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(5)
    writer.add_context_length(64)
    writer.add_embedding_length(768)
    writer.add_feed_forward_length(2048)
    writer.add_head_count(12)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"t{token_id}" for token_id in range(8_000)])
    for (name, _), size in model_weights(shape).items():
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, np.float32))
        elif name.startswith("blk"):
            raw = np.zeros((size[0], size[1] // 256 * 210), np.uint8)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.Q6_K)
        else:
            writer.add_tensor(name, np.zeros(size, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "gguf", pytest.param("dummy", marks=pytest.mark.nightly)])
def test_a_load_takes_what_is_planned_and_one_matrix(tmp_path: Path, kind: str) -> None:
    write = {"safetensors": write_safetensors, "gguf": write_gguf, "dummy": write_dummy}[kind]
    path = write(tmp_path / ("model.gguf" if kind == "gguf" else "model"))
    command = [sys.executable, "-P", str(Path(__file__).with_name("load_and_measure.py")), kind, path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    measured = json.loads(said)
    assert measured["planned"] > 150 * MIB
    assert measured["peak"] < measured["planned"] + LARGEST_MATRIX + 24 * MIB, measured
