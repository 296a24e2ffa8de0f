"""Which tokens begin and end a sequence, as the model's files say."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .gguf_file import read_gguf
from .json_file import decode_json_file
from .shape import Checkpoint

TokenIds = int | list[int] | None

_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


class SpecialIds(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The id that begins a sequence, if any, and the ids that end one, in the order in which the files name them."""

    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


class _Config(msgspec.Struct):
    # A list of ids that begin a sequence exists in no Llama model; LlamaConfig's defaults are 1 and 2.
    bos_token_id: int | None = 1
    eos_token_id: TokenIds = 2


class _GenerationConfig(msgspec.Struct):
    eos_token_id: TokenIds = None


def read_special_ids(checkpoint: Checkpoint) -> SpecialIds:
    """The ids of the checkpoint; those of generation_config.json are added to config.json's.

    Raises CorruptCheckpoint for malformed files.
    """
    return gguf_special_ids(checkpoint.path) if checkpoint.format == "gguf" else hf_special_ids(checkpoint.path)


def gguf_special_ids(path: str) -> SpecialIds:
    """The ids in a GGUF file's metadata: end of sequence, end of turn, end of message."""
    file = read_gguf(path)
    ends = [end for key in _END_KEYS if (end := file.integer(key)) is not None]
    return SpecialIds(file.integer("tokenizer.ggml.bos_token_id"), tuple(dict.fromkeys(ends)))


def hf_special_ids(directory: str) -> SpecialIds:
    """The ids in a directory's config.json and generation_config.json."""
    config = decode_json_file(Path(directory) / "config.json", _Config)
    ends = _as_list(config.eos_token_id)
    generation_path = Path(directory) / "generation_config.json"
    if generation_path.is_file():
        ends += _as_list(decode_json_file(generation_path, _GenerationConfig).eos_token_id)
    return SpecialIds(config.bos_token_id, tuple(dict.fromkeys(ends)))


def _as_list(ids: TokenIds) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)
