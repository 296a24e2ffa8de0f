"""Small valid model files, and strategies that damage them: bytes anywhere, or one value of a JSON document."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

HIDDEN, HEADS, KV_HEADS, FFN = 8, 2, 1, 16
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
VOCABULARY = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "abab"]
LAYER = {
    "attn_norm|input_layernorm": (HIDDEN,),
    "attn_q|self_attn.q_proj": (HIDDEN, HIDDEN),
    "attn_k|self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "attn_v|self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "attn_output|self_attn.o_proj": (HIDDEN, HIDDEN),
    "ffn_norm|post_attention_layernorm": (HIDDEN,),
    "ffn_gate|mlp.gate_proj": (FFN, HIDDEN),
    "ffn_up|mlp.up_proj": (FFN, HIDDEN),
    "ffn_down|mlp.down_proj": (HIDDEN, FFN),
}


def tensors(side: int) -> dict[str, np.ndarray[Any, Any]]:
    """side 0: GGUF's names, 1: Hugging Face's."""
    shapes = {("token_embd.weight", "model.embed_tokens.weight")[side]: (len(VOCABULARY), HIDDEN)}
    prefix = ("blk.0.", "model.layers.0.")[side]
    shapes |= {f"{prefix}{name.split('|')[side]}.weight": shape for name, shape in LAYER.items()}
    shapes[("output_norm.weight", "model.norm.weight")[side]] = (HIDDEN,)
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def write_gguf(path: Path) -> int:
    """A whole model; returns where its head ends and its weights begin."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] + [1] * (len(VOCABULARY) - 1))
    writer.add_token_merges(["a b", "ab ab"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    stored = tensors(0)
    for name, values in stored.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.stat().st_size - sum(values.nbytes for values in stored.values())


def write_directory(directory: Path) -> None:
    """The same as two shards with an index."""
    stored = tensors(1)
    names = sorted(stored)
    weight_map = {name: f"model-{index % 2 + 1}-of-2.safetensors" for index, name in enumerate(names)}
    for shard in sorted(set(weight_map.values())):
        save_file({name: stored[name] for name in names if weight_map[name] == shard}, directory / shard)
    files: dict[str, object] = {
        "model.safetensors.index.json": {"metadata": {"total_size": 1}, "weight_map": weight_map},
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1,
            "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
            "intermediate_size": FFN, "vocab_size": len(VOCABULARY), "max_position_embeddings": 64,
            "rope_theta": 10_000.0, "rope_scaling": None, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
            "bos_token_id": None, "eos_token_id": [0], "hidden_act": "silu", "head_dim": HIDDEN // HEADS,
        },
        "generation_config.json": {"eos_token_id": [0], "temperature": 0.6},
        "tokenizer_config.json": {
            "eos_token": "<end>", "bos_token": {"content": "<end>", "lstrip": False}, "chat_template": TEMPLATE,
            "added_tokens_decoder": {"0": {"content": "<end>", "special": True}},
        },
    }  # fmt: skip
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    vocabulary = {token: index for index, token in enumerate(VOCABULARY)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "ab")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    backend.save(str(directory / "tokenizer.json"))


def sentencepiece_model() -> bytes:
    """A tokenizer.model as protocol buffers: pieces (text, score, kind), the kind BPE, no normalization."""

    def field(number: int, value: bytes | int | float) -> bytes:
        if isinstance(value, bytes):
            return bytes([number << 3 | 2, len(value)]) + value
        return (
            bytes([number << 3 | 5]) + struct.pack("<f", value)
            if isinstance(value, float)
            else bytes([number << 3, value])
        )

    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("ab", -1.0, 1), ("abab", -2.0, 1), ("\u2581", -3.0, 1)]
    pieces += [("a", -4.0, 1), ("b", -5.0, 1), *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(200))]
    data = b"".join(
        field(1, field(1, text.encode()) + field(2, score) + field(3, kind)) for text, score, kind in pieces
    )
    return data + field(2, field(3, 2)) + field(3, field(3, 1) + field(4, 0))


NUMBERS = [0, 1, 2, 7, 31, 255, 1 << 16, (1 << 24) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1]


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, head_bytes: int) -> bytes:
    """`whole` with one to four changes, nine in ten of them in its head."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        end = min(len(data), head_bytes if draw(st.integers(0, 9)) else len(data))
        at = draw(st.integers(0, max(end - 1, 0)))
        match draw(st.sampled_from(["byte", "u32", "u64", "cut", "insert", "delete", "copy"])):
            case "byte":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "u32":
                data[at : at + 4] = struct.pack("<I", draw(st.sampled_from(NUMBERS)) & 0xFFFFFFFF)
            case "u64":
                data[at : at + 8] = struct.pack("<Q", draw(st.sampled_from(NUMBERS)))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=20))
            case "delete":
                del data[at : at + draw(st.integers(1, 20))]
            case "copy":
                data[at:at] = data[at : at + draw(st.integers(1, 200))]
    return bytes(data)


ODD_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, "", "x", "0", "../x", "\x00", "日", "x" * 10_000, [], {}, [[]], {"": {}}, 0.5]),
    st.sampled_from([-1, *NUMBERS, -(1 << 63), 1e308, -1e-308, 2.0]),
    st.lists(st.integers(-2, 300), max_size=5),
    st.text(max_size=8),
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in a JSON document."""
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*path, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from places(value, (*path, index))


def odd_value(draw: st.DrawFn) -> Any:
    """A copy: a later change may be made inside of it."""
    return copy.deepcopy(draw(ODD_VALUES))


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three values replaced, removed, or moved under another name."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document))))
        if not path:
            return odd_value(draw)
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        match draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename"])):
            case "replace":
                parent[path[-1]] = odd_value(draw)
            case "remove":
                del parent[path[-1]]
            case "rename":
                value = parent.pop(path[-1])
                if isinstance(parent, dict):
                    parent[str(odd_value(draw))] = value
                else:
                    parent.append(value)
    return document
