"""The chat template that comes with a checkpoint, as text."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import ConfigError
from .gguf_file import read_gguf
from .json_file import decode_json_file
from .shape import Checkpoint


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    chat_template: str | list[_NamedTemplate] | None = None


def read_chat_template(checkpoint: Checkpoint) -> str | None:
    """None: it brings none. Raises ConfigError for a file that cannot be read, CorruptCheckpoint for a broken one."""
    if checkpoint.format == "gguf":
        return read_gguf(checkpoint.path).text("tokenizer.chat_template")
    return _in_directory(Path(checkpoint.path))


def _in_directory(directory: Path) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's: the only one, or the one that is named `default`."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
    path = directory / "tokenizer_config.json"
    template = decode_json_file(path, _TokenizerConfig).chat_template if path.is_file() else None
    if not isinstance(template, list):
        return template
    return next((entry.template for entry in template if entry.name == "default"), None)
