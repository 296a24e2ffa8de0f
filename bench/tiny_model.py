"""A model directory that is made in a moment: one layer of zeros, and a tokenizer whose texts are mostly letters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from ..checkpoints.llama_weights import llama_weights
from ..checkpoints.shape import ModelShape

END = "<eos>"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"


def make_tiny_model(folder: Path, max_model_len: int) -> None:
    """Fill `folder`. Token 0 ends a sequence, the next 256 are the bytes, then come all pairs of small letters."""
    num_tokens = _save_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": num_tokens,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": max_model_len,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer_config = {"eos_token": END, "chat_template": _TEMPLATE.replace("\\n", "\n")}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    shape = ModelShape(
        architecture="llama",
        num_layers=1,
        hidden_size=32,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=32,
        vocab_size=num_tokens,
        max_position=max_model_len,
        rope_theta=10_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_ids=(0,),
        num_parameters=0,
    )
    weights = {names[1]: np.zeros(size, np.float32) for names, size in llama_weights(shape).items()}
    save_file(weights, folder / "model.safetensors")


def _save_tokenizer(folder: Path) -> int:
    """Returns the size of the vocabulary."""
    pairs = [(a, b) for a in _LETTERS for b in _LETTERS]
    tokens = [END, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in pairs)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(tokens)
