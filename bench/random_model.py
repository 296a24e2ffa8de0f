"""A small Llama with random weights, as a Hugging Face directory: made in a moment, needs no download and no torch."""

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
NUM_BYTE_TOKENS = 257
"""END, which is token 0, and one token a byte."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
_STANDARD_DEVIATION = 0.02


def write_random_model(
    folder: Path,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    intermediate_size: int = 128,
    max_model_len: int = 4096,
    merges_letters: bool = False,
    seed: int = 0,
) -> None:
    """Fill `folder`: config.json, model.safetensors (float32, the head not tied), tokenizer with a chat template.

    The vocabulary is NUM_BYTE_TOKENS; with `merges_letters` all pairs of small letters come behind them, so that texts
    are mostly letters. As slow as its size asks for.
    """
    num_tokens = _save_tokenizer(folder, merges_letters)
    shape = ModelShape(
        architecture="llama",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=intermediate_size,
        vocab_size=num_tokens,
        max_position=max_model_len,
        rope_theta=10_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_ids=(0,),
        num_parameters=0,
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": num_tokens,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": max_model_len,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    draw = np.random.default_rng(seed)
    weights = {
        names[1]: np.ones(size, np.float32)
        if "norm" in names[1]
        else draw.normal(0.0, _STANDARD_DEVIATION, size).astype(np.float32)
        for names, size in llama_weights(shape).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _save_tokenizer(folder: Path, merges_letters: bool) -> int:
    """Returns the size of the vocabulary."""
    pairs = [(a, b) for a in _LETTERS for b in _LETTERS] if merges_letters else []
    tokens = [END, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in pairs)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(tokens)
