"""The tokenizer in a GGUF file's metadata: byte-level BPE, built with the `tokenizers` package."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from ..checkpoints import Checkpoint, GGUFFile, read_gguf, read_special_ids
from ..errors import CorruptCheckpoint, UnsupportedModel
from .chat_template import ChatTemplate
from .tokenizer import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Values of tokenizer.ggml.token_type; the others (normal, unused, byte) are plain entries of the vocabulary."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

_PRE_TOKENIZERS = {
    "gpt-2": "gpt-2",
    "smollm": "smollm",
    "llama-bpe": "llama-bpe",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "qwen2": "qwen2",
}
"""tokenizer.ggml.pre -> the rule that it stands for."""

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
    source = file.text("tokenizer.chat_template") if chat_template is None else chat_template
    template = None
    if source:
        where = f"the chat template of {file.path}" if chat_template is None else "the given chat template"
        template = ChatTemplate(source, _named_tokens(file, tokens), where=where)
    return Tokenizer(
        _build(file, tokens, special.bos_token_id, special.eos_token_ids),
        bos_token_id=special.bos_token_id,
        eos_token_ids=special.eos_token_ids,
        chat_template=template,
        where=file.path,
    )


def _build(
    file: GGUFFile, tokens: list[str], bos_token_id: int | None, eos_token_ids: tuple[int, ...]
) -> tokenizers.Tokenizer:
    rule = _rule(file)
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [_pair(file, merge) for merge in file.texts("tokenizer.ggml.merges") or ()]
    try:
        model = models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=rule == "llama-bpe")
    except Exception as error:  # the package raises bare Exception for merges that do not fit the vocabulary
        raise CorruptCheckpoint(f"{file.path}: vocabulary and merges do not fit: {error}") from error
    backend = tokenizers.Tokenizer(model)
    if rule == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(rule)
    backend.decoder = decoders.ByteLevel()
    _add_marked_tokens(file, backend, tokens)
    # llama.cpp takes `llama-bpe` files without the field as if it were set: Llama 3's always begin with BOS.
    adds_bos = file.flag("tokenizer.ggml.add_bos_token")
    begin = bos_token_id if adds_bos or (adds_bos is None and rule == "llama-bpe") else None
    end = next(iter(eos_token_ids), None) if file.flag("tokenizer.ggml.add_eos_token") else None
    _add_around(backend, tokens, begin, end)
    return backend


def _rule(file: GGUFFile) -> str:
    model = file.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedModel(
            f"{file.path}: tokenizer.ggml.model {model!r} is not supported", advice="supported: gpt2 (byte-level BPE)"
        )
    pre = file.text("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{file.path}: tokenizer.ggml.pre {pre!r} is not supported",
            advice=f"supported: {', '.join(_PRE_TOKENIZERS)}",
        )
    return _PRE_TOKENIZERS[pre]


def _pre_tokenizer(rule: str) -> pre_tokenizers.PreTokenizer:
    match rule:
        case "gpt-2":
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
        case _:
            split = Regex(_LLAMA3_SPLIT if rule == "llama-bpe" else _QWEN2_SPLIT)
            by_regex = pre_tokenizers.Split(split, behavior="isolated")
            to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return pre_tokenizers.Sequence([by_regex, to_bytes])


def _pair(file: GGUFFile, merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not separator or " " in right:
        raise CorruptCheckpoint(f"{file.path}: {merge[:80]!r} in tokenizer.ggml.merges is not a pair of tokens")
    return left, right


def _add_marked_tokens(file: GGUFFile, backend: tokenizers.Tokenizer, tokens: list[str]) -> None:
    """Tokens that text is searched for before it is split: control tokens, which are special, and user-defined ones."""
    kinds = file.integers("tokenizer.ggml.token_type")
    if kinds is None:
        return
    if len(kinds) != len(tokens):
        raise CorruptCheckpoint(f"{file.path}: {len(tokens):,} tokens, but {len(kinds):,} entries in token_type")
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (_UNKNOWN, _CONTROL):
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_around(backend: tokenizers.Tokenizer, tokens: list[str], begin: int | None, end: int | None) -> None:
    """Lets `encode(add_special_tokens=True)` put the token `begin` before and `end` behind a text."""
    marks = [(name, token_id) for name, token_id in (("BEGIN", begin), ("END", end)) if token_id is not None]
    if not marks:
        return
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
