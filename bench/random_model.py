"""A Llama with random weights and a byte-level tokenizer: no download, and as slow as its size asks for."""

from __future__ import annotations

from pathlib import Path

NUM_TOKENS = 257
"""One a byte, and the end of sequence."""


def write_random_model(folder: Path, *, hidden_size: int = 512, num_layers: int = 6) -> None:
    """Write config.json, model.safetensors (float32) and the tokenizer. Needs the `dev` extra (transformers)."""
    import tokenizers
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<eos>", *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}'
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=NUM_TOKENS,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
