"""A tiny Llama model in both formats, written by the packages that define them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS, VOCAB = 64, 4, 2, 16, 96, 2, 40

WriteGGUF = Callable[..., Path]
WriteDirectory = Callable[..., Path]


def llama_shapes(is_tied: bool, *, is_gguf: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes as Hugging Face's LlamaForCausalLM and llama.cpp's converter write them."""
    layer = {
        "attn_norm|input_layernorm": (HIDDEN,),
        "attn_q|self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k|self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v|self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_output|self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_norm|post_attention_layernorm": (HIDDEN,),
        "ffn_gate|mlp.gate_proj": (FFN, HIDDEN),
        "ffn_up|mlp.up_proj": (FFN, HIDDEN),
        "ffn_down|mlp.down_proj": (HIDDEN, FFN),
    }
    side = 0 if is_gguf else 1
    prefix = ("blk.", "model.layers.")[side]
    shapes = {("token_embd.weight", "model.embed_tokens.weight")[side]: (VOCAB, HIDDEN)}
    for index in range(LAYERS):
        shapes |= {f"{prefix}{index}.{name.split('|')[side]}.weight": shape for name, shape in layer.items()}
    shapes[("output_norm.weight", "model.norm.weight")[side]] = (HIDDEN,)
    if not is_tied:
        shapes[("output.weight", "lm_head.weight")[side]] = (VOCAB, HIDDEN)
    return shapes


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGGUF:
    """write(name=..., architecture=..., is_tied=..., extra=writer -> None, skip=tensor name, quantize=name)."""

    def write(
        name: str = "tiny.gguf",
        architecture: str = "llama",
        is_tied: bool = True,
        extra: Callable[[gguf.GGUFWriter], None] | None = None,
        skip: str = "",
        quantization: gguf.GGMLQuantizationType | None = None,
    ) -> Path:
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(LAYERS)
        writer.add_context_length(128)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(50_000.0)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{index}" for index in range(VOCAB)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        if extra is not None:
            extra(writer)
        for tensor_name, shape in llama_shapes(is_tied, is_gguf=True).items():
            values = np.ones(shape, dtype=np.float32)
            if tensor_name == skip:
                continue
            if quantization is not None and len(shape) == 2 and "blk" in tensor_name:
                writer.add_tensor(tensor_name, gguf.quantize(values, quantization), raw_dtype=quantization)
            else:
                writer.add_tensor(tensor_name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def write_directory(tmp_path: Path) -> WriteDirectory:
    """write(name=..., is_tied=..., drop=(config keys), **config) -> the directory."""

    def write(name: str = "tiny", is_tied: bool = True, drop: tuple[str, ...] = (), **config: object) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        fields: dict[str, object] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": LAYERS,
            "hidden_size": HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "intermediate_size": FFN,
            "vocab_size": VOCAB,
            "max_position_embeddings": 128,
            "rope_theta": 50_000.0,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": is_tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **config,
        }
        kept = {key: value for key, value in fields.items() if key not in drop}
        (directory / "config.json").write_text(json.dumps(kept))
        shapes = llama_shapes(is_tied, is_gguf=False)
        save_file({key: np.ones(size, np.float32) for key, size in shapes.items()}, directory / "model.safetensors")
        return directory

    return write
