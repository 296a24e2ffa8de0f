"""The tokenizer of a model that brings none: every byte goes in, every id has a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.checkpoints import Checkpoint, resolve_checkpoint
from callboard.mailbox.messages.requests import ChatMessage
from callboard.text import Tokenizer, load_tokenizer

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 2000, "hidden_size": 8, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "bos_token_id": 1, "eos_token_id": [2, 1999],
}  # fmt: skip


def checkpoint_of(folder: Path, **changes: object) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return resolve_checkpoint(f"dummy:{folder}")


@pytest.fixture(scope="module")
def dummy(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(checkpoint_of(tmp_path_factory.mktemp("dummy")))


@settings(deadline=None)
@given(text=st.text().filter(lambda text: "<|" not in text))
def test_a_text_has_as_many_tokens_as_bytes(dummy: Tokenizer, text: str) -> None:
    ids = dummy.encode(text, True)
    assert len(ids) == len(text.encode())
    assert dummy.decode(ids) == text


def test_every_id_has_a_text_of_its_own(dummy: Tokenizer) -> None:
    assert dummy.vocab_size == 2000
    texts = [dummy.token_bytes(token_id) for token_id in range(2000)]
    assert len(set(texts)) == 2000 and all(texts)
    assert (dummy.bos_token_id, dummy.eos_token_ids) == (1, (2, 1999))
    assert [token_id for token_id in range(2000) if dummy.is_special(token_id)] == [1, 2, 1999]
    assert {texts[token_id] for token_id in range(259)} > {bytes([byte]) for byte in range(256)}


def test_a_chat_can_be_sent(dummy: Tokenizer) -> None:
    assert dummy.chat_template is not None
    assert dummy.chat_template.render([ChatMessage("user", "Hi")]) == "user: Hi\nassistant: "


def test_a_vocabulary_smaller_than_the_bytes_has_the_printable_ones(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(checkpoint_of(tmp_path / "small", vocab_size=100, eos_token_id=2))
    printable = "".join(map(chr, range(32, 127)))
    assert tokenizer.decode(tokenizer.encode(printable, False)) == printable


def test_a_tokenizer_beside_the_config_is_the_models(tmp_path: Path, byte_level_backend) -> None:
    checkpoint = checkpoint_of(tmp_path / "own")
    byte_level_backend.save(str(tmp_path / "own" / "tokenizer.json"))
    assert load_tokenizer(checkpoint).vocab_size == byte_level_backend.get_vocab_size()
