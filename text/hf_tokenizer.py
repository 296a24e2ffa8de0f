"""The tokenizer in a directory as Hugging Face writes it: tokenizer.json or tokenizer.model, tokenizer_config.json,
a chat template.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import tokenizers
from tokenizers import AddedToken, processors

from ..checkpoints import Checkpoint, read_chat_template, read_special_ids
from ..checkpoints.json_file import decode_json_file
from ..errors import CorruptCheckpoint, UnsupportedModel
from .chat_template import ChatTemplate
from .sentencepiece import build_sentencepiece
from .sentencepiece_file import read_sentencepiece
from .tokenizer import Tokenizer


class _Token(msgspec.Struct):
    """A token with how it is looked for in a text."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = False


class _TokenizerConfig(msgspec.Struct):
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None
    sep_token: str | _Token | None = None
    cls_token: str | _Token | None = None
    mask_token: str | _Token | None = None
    added_tokens_decoder: dict[str, _Token] = {}
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    legacy: bool | None = None
    """Of a SentencePiece model that puts a space before a text: also before what follows a marked token."""


_MAX_ID_DIGITS = 10
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def load_hf_tokenizer(checkpoint: Checkpoint, chat_template: str | None) -> Tokenizer:
    """The tokenizer in the checkpoint's directory; `chat_template` replaces its own, an empty one is none.

    Errors as in `load_tokenizer`.
    """
    directory = Path(checkpoint.path)
    config = _read_config(directory)
    path = directory / "tokenizer.json"
    if path.is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception for whatever is wrong with the file
            raise CorruptCheckpoint(f"{path} is malformed: {error}") from error
    else:
        path = directory / "tokenizer.model"
        backend = _from_sentencepiece(path, config)
    _add_tokens(backend, config, str(directory / "tokenizer_config.json"))
    named = _named_tokens(config)
    special = read_special_ids(checkpoint)
    begin, end = (backend.token_to_id(named.get(name, "")) for name in ("bos_token", "eos_token"))
    ends = special.eos_token_ids if end is None else (*special.eos_token_ids, end)
    template = None
    source = read_chat_template(checkpoint) if chat_template is None else chat_template
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


def has_tokenizer(directory: str) -> bool:
    """Whether the directory holds a file that `load_hf_tokenizer` reads a vocabulary from."""
    return any((Path(directory) / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))


def _from_sentencepiece(path: Path, config: _TokenizerConfig) -> tokenizers.Tokenizer:
    """As the Llama and Gemma classes read it: texts begin with BOS unless the configuration says no."""
    if not path.is_file():
        raise UnsupportedModel(
            f"{path.parent} holds no tokenizer.json and no tokenizer.model",
            advice="other tokenizer files are not supported; save it once as a fast tokenizer",
        )
    model = read_sentencepiece(path)
    only_first = config.legacy is False
    backend = build_sentencepiece(model.vocabulary, adds_space=model.adds_space, only_first=only_first, where=str(path))
    named = _named_tokens(config)
    begin = named.get("bos_token", "<s>") if config.add_bos_token is not False else ""
    end = named.get("eos_token", "</s>") if config.add_eos_token else ""
    known = [token if backend.token_to_id(token) is not None else "" for token in (begin, end)]
    if any(known):
        pieces = [known[0], "$A", known[1]]
        backend.post_processor = processors.TemplateProcessing(
            single=[piece for piece in pieces if piece],
            special_tokens=[(token, backend.token_to_id(token)) for token in known if token],
        )
    return backend


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
