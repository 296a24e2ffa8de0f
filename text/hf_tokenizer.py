"""The tokenizer in a directory as Hugging Face writes it: tokenizer.json, tokenizer_config.json, a chat template."""

from __future__ import annotations

from pathlib import Path

import msgspec
import tokenizers
from tokenizers import AddedToken

from ..checkpoints import Checkpoint, read_special_ids
from ..checkpoints.json_file import decode_json_file
from ..errors import ConfigError, CorruptCheckpoint, UnsupportedModel
from .chat_template import ChatTemplate
from .tokenizer import Tokenizer


class _Token(msgspec.Struct):
    """A token with how it is looked for in a text."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = False


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None
    sep_token: str | _Token | None = None
    cls_token: str | _Token | None = None
    mask_token: str | _Token | None = None
    added_tokens_decoder: dict[str, _Token] = {}
    chat_template: str | list[_NamedTemplate] | None = None


_MAX_ID_DIGITS = 10
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def load_hf_tokenizer(checkpoint: Checkpoint, chat_template: str | None) -> Tokenizer:
    """The tokenizer in the checkpoint's directory; `chat_template` replaces its own, an empty one is none.

    Errors as in `load_tokenizer`.
    """
    directory = Path(checkpoint.path)
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{directory} holds no tokenizer.json",
            advice="other tokenizer files are not supported; save it once as a fast tokenizer",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception for whatever is wrong with the file
        raise CorruptCheckpoint(f"{path} is malformed: {error}") from error
    config = _read_config(directory)
    _add_tokens(backend, config, str(directory / "tokenizer_config.json"))
    named = _named_tokens(config)
    special = read_special_ids(checkpoint)
    begin, end = (backend.token_to_id(named.get(name, "")) for name in ("bos_token", "eos_token"))
    ends = special.eos_token_ids if end is None else (*special.eos_token_ids, end)
    template = None
    source = _read_template(directory, config) if chat_template is None else chat_template
    if source:
        where = f"the chat template of {directory}" if chat_template is None else "the given chat template"
        template = ChatTemplate(source, named, where=where)
    return Tokenizer(
        backend,
        bos_token_id=special.bos_token_id if begin is None else begin,
        eos_token_ids=tuple(dict.fromkeys(ends)),
        chat_template=template,
        where=str(path),
    )


def _read_config(directory: Path) -> _TokenizerConfig:
    path = directory / "tokenizer_config.json"
    return decode_json_file(path, _TokenizerConfig) if path.is_file() else _TokenizerConfig()


def _add_tokens(backend: tokenizers.Tokenizer, config: _TokenizerConfig, where: str) -> None:
    """Tokens that only tokenizer_config.json knows of, and the special nature of the named ones."""
    for token_id in config.added_tokens_decoder:
        if not (token_id.isascii() and token_id.isdecimal() and len(token_id) <= _MAX_ID_DIGITS):
            raise CorruptCheckpoint(
                f"{where}: added_tokens_decoder has the key {token_id[:80]!r}, which is no token id"
            )
    for _, token in sorted(config.added_tokens_decoder.items(), key=lambda item: int(item[0])):
        if backend.token_to_id(token.content) is None:
            backend.add_tokens([_added(token)])
    for name in _NAMES:
        named: str | _Token | None = getattr(config, name)
        if named is not None:
            token = _Token(named) if isinstance(named, str) else named
            if token.content not in {known.content for known in backend.get_added_tokens_decoder().values()}:
                backend.add_special_tokens([_added(token)])


def _added(token: _Token) -> AddedToken:
    return AddedToken(
        token.content,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
        normalized=token.normalized,
        special=token.special,
    )


def _named_tokens(config: _TokenizerConfig) -> dict[str, str]:
    """`bos_token`, `eos_token`, ... -> text, as a chat template sees them."""
    named = {}
    for name in _NAMES:
        token: str | _Token | None = getattr(config, name)
        if token is not None:
            named[name] = token if isinstance(token, str) else token.content
    return named


def _read_template(directory: Path, config: _TokenizerConfig) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's: the only one, or the one that is named `default`."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(config.chat_template, list):
        return config.chat_template
    return next((entry.template for entry in config.chat_template if entry.name == "default"), None)
