"""The tokenizer in a GGUF file's metadata, built with the `tokenizers` package: byte-level or SentencePiece's BPE."""

from __future__ import annotations

from typing import cast

import tokenizers
from tokenizers import AddedToken, decoders, models, processors

from ..checkpoints import Checkpoint, GGUFFile, read_chat_template, read_gguf, read_special_ids
from ..errors import CorruptCheckpoint, UnsupportedModel
from .chat_template import ChatTemplate
from .pre_tokenizers import SPLIT_RULES, SplitRule, split_normalizer, split_pre_tokenizer
from .sentencepiece import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary, build_sentencepiece
from .tokenizer import Tokenizer

_MARKED = {UNKNOWN, CONTROL, USER_DEFINED}
_SPECIAL_ROLES = ("bos", "eos", "unknown", "padding", "separator", "mask")
_TEMPLATE_NAMES = {"unknown": "unk_token", "padding": "pad_token", "separator": "sep_token"}


def load_gguf_tokenizer(checkpoint: Checkpoint, chat_template: str | None) -> Tokenizer:
    """The tokenizer of a GGUF checkpoint; `chat_template` replaces the file's own, an empty one is none.

    Errors as in `load_tokenizer`.
    """
    file = read_gguf(checkpoint.path)
    tokens = file.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise CorruptCheckpoint(f"{file.path} has no tokenizer.ggml.tokens")
    special = read_special_ids(checkpoint)
    backend = _build(file, tokens, special.bos_token_id, special.eos_token_ids)
    source = read_chat_template(checkpoint) if chat_template is None else chat_template
    template = None
    if source:
        where = f"the chat template of {file.path}" if chat_template is None else "the given chat template"
        template = ChatTemplate(source, _named_tokens(file, tokens), where=where)
    return Tokenizer(
        backend,
        bos_token_id=special.bos_token_id,
        eos_token_ids=special.eos_token_ids,
        chat_template=template,
        where=file.path,
        strings=tokens,
    )


def _build(
    file: GGUFFile, tokens: list[str], bos_token_id: int | None, eos_token_ids: tuple[int, ...]
) -> tokenizers.Tokenizer:
    kinds = _kinds(file, tokens)
    match model := file.text("tokenizer.ggml.model"):
        case "gpt2":
            rule = _rule(file)
            backend, adds_bos = _byte_level(file, rule, tokens, kinds), rule.adds_bos
        case "llama":
            backend, adds_bos = _sentencepiece(file, tokens, kinds), True
        case _:
            raise UnsupportedModel(
                f"{file.path}: tokenizer.ggml.model {model!r} is not supported",
                advice="supported: gpt2 (byte-level BPE), llama (SentencePiece's BPE)",
            )
    stated = file.flag("tokenizer.ggml.add_bos_token")
    begin = bos_token_id if (adds_bos if stated is None else stated) else None
    end = next(iter(eos_token_ids), None) if file.flag("tokenizer.ggml.add_eos_token") else None
    _add_around(file, backend, tokens, begin, end)
    return backend


def _kinds(file: GGUFFile, tokens: list[str]) -> list[int]:
    kinds = file.integers("tokenizer.ggml.token_type")
    if kinds is None:
        return [NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise CorruptCheckpoint(f"{file.path}: {len(tokens):,} tokens, but {len(kinds):,} entries in token_type")
    return kinds


def _sentencepiece(file: GGUFFile, tokens: list[str], kinds: list[int]) -> tokenizers.Tokenizer:
    scores = file.numbers("tokenizer.ggml.scores")
    if scores is None:
        raise CorruptCheckpoint(f"{file.path} has no tokenizer.ggml.scores, which a SentencePiece vocabulary needs")
    adds_space = file.flag("tokenizer.ggml.add_space_prefix")
    return build_sentencepiece(
        Vocabulary(tokens, scores, kinds), adds_space=adds_space is not False, only_first=False, where=file.path
    )


def _byte_level(file: GGUFFile, rule: SplitRule, tokens: list[str], kinds: list[int]) -> tokenizers.Tokenizer:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = _pairs(file)
    try:
        model = models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=rule.ignores_merges)
    except Exception as error:  # the package raises bare Exception for merges that do not fit the vocabulary
        raise CorruptCheckpoint(f"{file.path}: vocabulary and merges do not fit: {error}") from error
    backend = tokenizers.Tokenizer(model)
    normalizer = split_normalizer(rule)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = split_pre_tokenizer(rule)
    backend.decoder = decoders.ByteLevel()
    _add_marked_tokens(backend, tokens, kinds)
    return backend


def _rule(file: GGUFFile) -> SplitRule:
    pre = file.text("tokenizer.ggml.pre")
    if pre is None:
        raise UnsupportedModel(
            f"{file.path} does not say how its tokenizer splits a text (tokenizer.ggml.pre is missing)",
            advice="convert the model again with a present llama.cpp, or use its Hugging Face directory",
        )
    if pre not in SPLIT_RULES:
        raise UnsupportedModel(
            f"{file.path}: tokenizer.ggml.pre {pre!r} is not supported",
            advice=f"use the model's Hugging Face directory; supported in GGUF: {', '.join(SPLIT_RULES)}",
        )
    return SPLIT_RULES[pre]


def _pairs(file: GGUFFile) -> list[tuple[str, str]]:
    merges = file.texts("tokenizer.ggml.merges") or []
    pairs = [tuple(merge.split(" ")) for merge in merges]
    for merge, pair in zip(merges, pairs, strict=True):
        if len(pair) != 2:
            raise CorruptCheckpoint(f"{file.path}: {merge[:80]!r} in tokenizer.ggml.merges is not a pair of tokens")
    return cast("list[tuple[str, str]]", pairs)


def _add_marked_tokens(backend: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Tokens that text is searched for before it is split: control tokens, which are special, and user-defined ones."""
    marked = [(tokens[i], kind) for i, kind in enumerate(kinds) if kind in _MARKED and tokens[i]]
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in marked if kind != USER_DEFINED]
    )
    backend.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token, kind in marked if kind == USER_DEFINED]
    )


def _add_around(
    file: GGUFFile, backend: tokenizers.Tokenizer, tokens: list[str], begin: int | None, end: int | None
) -> None:
    """Lets `encode(add_special_tokens=True)` put the token `begin` before and `end` behind a text."""
    marks = [(name, token_id) for name, token_id in (("BEGIN", begin), ("END", end)) if token_id is not None]
    if not marks:
        return
    for _, token_id in marks:
        if not 0 <= token_id < len(tokens):
            raise CorruptCheckpoint(f"{file.path}: texts begin or end with token {token_id}, of {len(tokens):,}")
    pieces = ["BEGIN"] * (begin is not None) + ["$A"] + ["END"] * (end is not None)
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(pieces),
        special_tokens=[{"id": name, "ids": [token_id], "tokens": [tokens[token_id]]} for name, token_id in marks],
    )


def _named_tokens(file: GGUFFile, tokens: list[str]) -> dict[str, str]:
    """`bos_token`, `eos_token`, ... -> text, as a chat template sees them."""
    named = {}
    for role in _SPECIAL_ROLES:
        token_id = file.integer(f"tokenizer.ggml.{role}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            named[_TEMPLATE_NAMES.get(role, f"{role}_token")] = tokens[token_id]
    return named
