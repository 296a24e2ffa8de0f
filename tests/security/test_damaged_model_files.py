"""Whatever a model's files hold: a model, or an error that names the file. No other exception, no memory without end.

The address space is limited while a file is read, so that a length that is taken from the file and believed shows.
"""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_bytes
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from callboard.checkpoints import Checkpoint, gguf_file, read_shape
from callboard.errors import ConfigError, CorruptCheckpoint, EngineFailure, InvalidRequest
from callboard.mailbox.messages.requests import ChatMessage
from callboard.models.load import load_model
from callboard.text import load_tokenizer

MEMORY_BYTES = 1 << 30
JSON_FILES = [
    "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors.index.json",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _limited_memory() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)


def load(checkpoint: Checkpoint) -> bool:
    """Everything that a start reads of a model. True: it is one; False: a ConfigError that names a file."""
    gguf_file._read_cached.cache_clear()
    try:
        shape = read_shape(checkpoint)
        load_model(checkpoint, shape, torch.float32, torch.device("cpu"), max_model_len=16)
        tokenizer = load_tokenizer(checkpoint)
    except ConfigError as error:
        assert str(Path(checkpoint.path).parent) in str(error) or "architecture" in str(error), error
        return False
    with contextlib.suppress(EngineFailure):
        tokenizer.decode(tokenizer.encode("abab ä日 <end>", add_special_tokens=True))
    if tokenizer.chat_template is not None:
        with contextlib.suppress(InvalidRequest):
            tokenizer.chat_template.render([ChatMessage("user", "x")])
    return True


class Files:
    """A valid model in both formats, and a place for damaged copies."""

    def __init__(self, folder: Path) -> None:
        (folder / "whole").mkdir()
        (folder / "damaged").mkdir()
        self.gguf = folder / "whole.gguf"
        self.head_bytes = hostile_bytes.write_gguf(self.gguf)
        self.directory = folder / "whole"
        hostile_bytes.write_directory(self.directory)
        self._damaged = folder / "damaged"

    def with_gguf(self, data: bytes) -> Checkpoint:
        path = self._new("model.gguf")
        path.write_bytes(data)
        return Checkpoint(str(path), "gguf", str(path), "x")

    def with_file(self, name: str, data: bytes) -> Checkpoint:
        directory = self._new("model")
        shutil.copytree(self.directory, directory)
        (directory / name).unlink()
        (directory / name).write_bytes(data)
        return Checkpoint(str(directory), "safetensors", str(directory), "x")

    def _new(self, name: str) -> Path:
        """New files each time: those before may still be mapped."""
        shutil.rmtree(self._damaged)
        self._damaged.mkdir()
        return self._damaged / name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("models"))


def fuzz(examples: int) -> Any:
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))


BUDGETS = [pytest.param(1, id="short"), pytest.param(80, id="long", marks=pytest.mark.nightly)]


def test_the_files_are_a_model_before_they_are_damaged(files: Files) -> None:
    assert load(files.with_gguf(files.gguf.read_bytes()))
    assert load(files.with_file("config.json", (files.directory / "config.json").read_bytes()))


def test_a_panic_of_the_tokenizer_library_is_an_error_like_others(files: Files) -> None:
    """A merge that is shorter than the prefix that it is said to have; found by the long run below."""
    document = json.loads((files.directory / "tokenizer.json").read_bytes())
    document["model"]["continuing_subword_prefix"] = "longer than a merge"
    checkpoint = files.with_file("tokenizer.json", json.dumps(document).encode())
    with pytest.raises(CorruptCheckpoint, match="the tokenizer library has failed: range"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize("shard", ["x" * 256, "x" * 100_000, "日" * 86, "a\0b", "", ".", "..", "a/b", "/etc/passwd"])
def test_a_shard_is_a_file_name(files: Files, shard: str) -> None:
    index = {"weight_map": {"model.norm.weight": shard}}
    checkpoint = files.with_file("model.safetensors.index.json", json.dumps(index).encode())
    with pytest.raises(CorruptCheckpoint, match="names the shard") as caught:
        read_shape(checkpoint)
    assert len(str(caught.value)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_damaged_gguf_file(files: Files, budget: int) -> None:
    whole = files.gguf.read_bytes()
    seen = set()

    @fuzz(120 * budget)
    @given(hostile_bytes.damaged(whole, files.head_bytes))
    @example(whole[:-1])
    @example(whole)
    def run(data: bytes) -> None:
        seen.add(load(files.with_gguf(data)))

    run()
    assert seen == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_damaged_safetensors_file(files: Files, budget: int) -> None:
    name = "model-1-of-2.safetensors"
    whole = (files.directory / name).read_bytes()
    head_bytes = 8 + int.from_bytes(whole[:8], "little")
    head = json.loads(whole[8:head_bytes])

    def with_head(changed: Any) -> bytes:
        text = json.dumps(changed).encode()
        return len(text).to_bytes(8, "little") + text + whole[head_bytes:]

    @fuzz(80 * budget)
    @given(hostile_bytes.damaged(whole, head_bytes) | hostile_bytes.altered(head).map(with_head))
    def run(data: bytes) -> None:
        load(files.with_file(name, data))

    run()


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_damaged_sentencepiece_model(tmp_path: Path, budget: int) -> None:
    whole = hostile_bytes.sentencepiece_model()
    (tmp_path / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": 1}')
    seen = set()

    @fuzz(80 * budget)
    @given(hostile_bytes.damaged(whole, len(whole)) | st.binary(max_size=50))
    @example(whole)
    def run(data: bytes) -> None:
        path = tmp_path / "tokenizer.model"
        path.write_bytes(data)
        try:
            tokenizer = load_tokenizer(Checkpoint("x", "safetensors", str(tmp_path), "x"))
        except ConfigError as error:
            assert str(tmp_path) in str(error)
            seen.add(False)
            return
        with contextlib.suppress(EngineFailure):
            tokenizer.decode(tokenizer.encode("abab ä日 <s>", add_special_tokens=True))
        seen.add(True)

    run()
    assert seen == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", JSON_FILES)
def test_a_damaged_json_file(files: Files, name: str, budget: int) -> None:
    whole = (files.directory / name).read_bytes()
    as_text = hostile_bytes.altered(json.loads(whole)).map(lambda changed: json.dumps(changed).encode())

    @fuzz(25 * budget)
    @given(as_text | as_text | hostile_bytes.damaged(whole, len(whole)) | st.binary(max_size=50))
    def run(data: bytes) -> None:
        load(files.with_file(name, data))

    run()
