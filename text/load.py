"""The tokenizer of a checkpoint, whatever its format."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints import Checkpoint
from ..errors import ConfigError, CorruptCheckpoint
from .dummy_tokenizer import make_dummy_tokenizer
from .gguf_tokenizer import load_gguf_tokenizer
from .hf_tokenizer import has_tokenizer, load_hf_tokenizer
from .render_process import shared
from .rust_panics import panics_as
from .tokenizer import Tokenizer


def load_tokenizer(
    checkpoint: Checkpoint, *, chat_template_path: str | None = None, has_chat_template: bool = True
) -> Tokenizer:
    """The tokenizer that belongs to the checkpoint, with its chat template or the one in the file given.

    Without `has_chat_template` no template is read, and no process started that would render it.

    Raises UnsupportedModel (a kind of tokenizer that is not supported, by name), CorruptCheckpoint (a malformed file),
    ConfigError (a chat template with a syntax error, or a file that cannot be read).
    """
    if has_chat_template:
        shared.start()  # it gets ready while the vocabulary is read
        template = None if chat_template_path is None else _read(chat_template_path)
    else:
        template = ""
    with panics_as(lambda sentence: CorruptCheckpoint(f"{checkpoint.path}: {sentence}")):
        if checkpoint.format == "gguf":
            return load_gguf_tokenizer(checkpoint, template)
        if checkpoint.format == "dummy" and not has_tokenizer(checkpoint.path):
            return make_dummy_tokenizer(checkpoint, template)
        return load_hf_tokenizer(checkpoint, template)


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text: {error}"
        raise ConfigError(
            f"cannot read the chat template {path!r}: {reason}",
            advice="correct [model] chat_template, or leave it out for the model's own",
        ) from error
