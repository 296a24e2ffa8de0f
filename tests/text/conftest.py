"""Small real tokenizers, trained here, in the forms in which models bring them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from callboard.checkpoints import Checkpoint
from callboard.text import Tokenizer, load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 1234 o'clock, isn't it?",
    "Größe, naïve café, Ελληνικά, русский, 日本の首都は東京です。",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))\t# ok",
    "😀😃 🏳️‍🌈 👍🏽 emoji",
] * 20

SPECIALS = ["<|begin|>", "<|end|>", "<|im start|>"]

WriteDirectory = Callable[..., Checkpoint]


@pytest.fixture(scope="session")
def byte_level_backend() -> tokenizers.Tokenizer:
    """Byte-level BPE over all 256 bytes with three special tokens, one with a space in its text."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(text, special=True) for text in SPECIALS],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return backend


@pytest.fixture(scope="session")
def sentencepiece_backend() -> tokenizers.Tokenizer:
    """BPE with spaces as U+2581 and bytes as `<0xE2>`, as Llama 2's."""
    specials = ["<unk>", "<s>", "</s>"]
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=440,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in specials],
        initial_alphabet=["▁"],
        limit_alphabet=60,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS[:1] + CORPUS[2:3], trainer)
    # The trainer knows no byte tokens; they belong into the model's own vocabulary.
    described = json.loads(backend.to_str())
    vocabulary = described["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    backend = tokenizers.Tokenizer.from_str(json.dumps(described))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return backend


@pytest.fixture(scope="session")
def write_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WriteDirectory:
    """write(backend, config={...} for tokenizer_config.json, files={name: text}) -> checkpoint of a directory."""

    def write(
        backend: tokenizers.Tokenizer,
        config: dict[str, object] | None = None,
        files: dict[str, str] | None = None,
        model: dict[str, object] | None = None,
    ) -> Checkpoint:
        directory = tmp_path_factory.mktemp("tokenizer")
        backend.save(str(directory / "tokenizer.json"))
        (directory / "config.json").write_text(
            json.dumps({"eos_token_id": None, "bos_token_id": None, **(model or {})})
        )
        if config is not None:
            (directory / "tokenizer_config.json").write_text(json.dumps(config))
        for name, text in (files or {}).items():
            (directory / name).write_text(text)
        return Checkpoint(str(directory), "safetensors", str(directory), directory.name)

    return write


@pytest.fixture(scope="session")
def byte_level(byte_level_backend: tokenizers.Tokenizer, write_tokenizer: WriteDirectory) -> Tokenizer:
    return load_tokenizer(write_tokenizer(byte_level_backend, {"bos_token": "<|begin|>", "eos_token": "<|end|>"}))


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_backend: tokenizers.Tokenizer, write_tokenizer: WriteDirectory) -> Tokenizer:
    return load_tokenizer(write_tokenizer(sentencepiece_backend, {"bos_token": "<s>", "eos_token": "</s>"}))


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(Checkpoint(str(smollm2_gguf), "gguf", str(smollm2_gguf), "smollm2"))


@pytest.fixture(scope="session")
def write_gguf_tokenizer(
    tmp_path_factory: pytest.TempPathFactory, byte_level_backend: tokenizers.Tokenizer
) -> Callable[..., Checkpoint]:
    """write(pre=..., kinds=..., merges=..., extra=writer -> None): the byte-level tokenizer as GGUF metadata."""

    def write(
        pre: str | None = "gpt-2",
        model: str = "gpt2",
        kinds: list[int] | None = None,
        merges: list[str] | None = None,
        extra: Callable[[gguf.GGUFWriter], None] | None = None,
    ) -> Checkpoint:
        path = tmp_path_factory.mktemp("gguf") / "tokenizer.gguf"
        described = json.loads(byte_level_backend.to_str())["model"]
        tokens = sorted(described["vocab"], key=described["vocab"].__getitem__)
        pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in described["merges"]]
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(model)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens] if kinds is None else kinds)
        writer.add_token_merges(pairs if merges is None else merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        if extra is not None:
            extra(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Checkpoint(str(path), "gguf", str(path), "tokenizer")

    return write
