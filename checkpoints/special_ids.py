"""Which tokens begin and end a sequence, as the model's files say."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .architectures import hf_architecture
from .gguf_file import GGUFFile, read_gguf
from .json_file import decode_json_file
from .shape import Checkpoint

TokenIds = int | list[int] | None

_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_ENDS_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>")
"""Of Llama 3, ChatML and Gemma. Converters have written eot_token_id only since late in 2024."""
_CONTROL = 3
"""In tokenizer.ggml.token_type."""


class SpecialIds(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The id that begins a sequence, if any, and the ids that end one, in the order in which the files name them."""

    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


_CLASS_DEFAULTS: dict[str, tuple[int | None, int | None]] = {
    "llama": (1, 2),
    "mistral": (1, 2),
    "qwen2": (None, None),
    "qwen3": (None, None),
    "gemma3": (2, 1),
}
"""Beginning and end of a config.json that does not say: those of the family's class in transformers."""


class _Config(msgspec.Struct):
    # A list of ids that begin a sequence exists in no model of these families.
    bos_token_id: int | msgspec.UnsetType | None = msgspec.UNSET
    eos_token_id: TokenIds | msgspec.UnsetType = msgspec.UNSET


class _GenerationConfig(msgspec.Struct):
    eos_token_id: TokenIds = None


def read_special_ids(checkpoint: Checkpoint) -> SpecialIds:
    """The ids of the checkpoint; those of generation_config.json are added to config.json's.

    Raises CorruptCheckpoint for malformed files.
    """
    return gguf_special_ids(checkpoint.path) if checkpoint.format == "gguf" else hf_special_ids(checkpoint.path)


def gguf_special_ids(path: str) -> SpecialIds:
    """The ids in a GGUF file's metadata: end of sequence, end of turn, end of message.

    Where it names no end of turn, that of a known name is one, if it is a control token.
    """
    file = read_gguf(path)
    ends = [end for key in _END_KEYS if (end := file.integer(key)) is not None]
    if file.integer("tokenizer.ggml.eot_token_id") is None:
        ends += _ends_of_turn(file)
    return SpecialIds(file.integer("tokenizer.ggml.bos_token_id"), tuple(dict.fromkeys(ends)))


def _ends_of_turn(file: GGUFFile) -> list[int]:
    tokens, kinds = file.texts("tokenizer.ggml.tokens") or [], file.integers("tokenizer.ggml.token_type") or []
    control = [token_id for token_id, kind in enumerate(kinds[: len(tokens)]) if kind == _CONTROL]
    return [token_id for token_id in control if tokens[token_id] in _ENDS_OF_TURN]


def hf_special_ids(directory: str, architecture: str | None = None) -> SpecialIds:
    """The ids in a directory's config.json and generation_config.json. architecture: of a file that names another."""
    path = Path(directory) / "config.json"
    config = decode_json_file(path, _Config)
    bos, eos = config.bos_token_id, config.eos_token_id
    if bos is msgspec.UNSET or eos is msgspec.UNSET:
        default_bos, default_eos = _CLASS_DEFAULTS[architecture or hf_architecture(path)]
        bos = default_bos if bos is msgspec.UNSET else bos
        eos = default_eos if eos is msgspec.UNSET else eos
    ends = _as_list(eos)
    generation_path = Path(directory) / "generation_config.json"
    if generation_path.is_file():
        ends += _as_list(decode_json_file(generation_path, _GenerationConfig).eos_token_id)
    return SpecialIds(bos, tuple(dict.fromkeys(ends)))


def _as_list(ids: TokenIds) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)
