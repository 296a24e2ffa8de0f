"""SentencePiece's BPE with the `tokenizers` package: pieces have scores, the pair that makes the best piece goes first.

Kudo and Richardson 2018 (arXiv:1808.06226). What no piece covers falls back to bytes (`<0xE2>`). Spaces are U+2581.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from ..errors import CorruptCheckpoint

SPACE = "\u2581"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of pieces; the numbers of sentencepiece_model.proto, which are GGUF's tokenizer.ggml.token_type too."""


class Vocabulary(NamedTuple):
    """The pieces of a model: three lists of one length."""

    pieces: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]


def build_sentencepiece(
    vocabulary: Vocabulary, *, adds_space: bool, only_first: bool, where: str
) -> tokenizers.Tokenizer:
    """A tokenizer without a post-processor.

    `adds_space`: a space is put before the text; `only_first`: not before what follows a marked token.
    Raises CorruptCheckpoint, naming `where`, for lists of different lengths or a piece that stands there twice.
    """
    pieces = vocabulary.pieces
    if not len(pieces) == len(vocabulary.scores) == len(vocabulary.kinds):
        raise CorruptCheckpoint(
            f"{where}: {len(pieces):,} tokens, {len(vocabulary.scores):,} scores, {len(vocabulary.kinds):,} kinds"
        )
    ids = {piece: token_id for token_id, piece in enumerate(pieces)}
    if len(ids) != len(pieces):
        twice = next(piece for token_id, piece in enumerate(pieces) if ids[piece] != token_id)
        raise CorruptCheckpoint(f"{where}: the token {twice[:80]!r} stands there twice")
    unknown = next((piece for piece, kind in zip(pieces, vocabulary.kinds, strict=True) if kind == UNKNOWN), None)
    has_bytes = all(f"<0x{byte:02X}>" in ids for byte in range(256))
    try:
        model = models.BPE(ids, _merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    except Exception as error:  # the package raises bare Exception for whatever it does not take
        raise CorruptCheckpoint(f"{where}: the vocabulary makes no tokenizer: {error}") from error
    backend = tokenizers.Tokenizer(model)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if not adds_space:
        backend.normalizer = normalizers.Replace(" ", SPACE)
    elif only_first:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    _add_marked_pieces(backend, vocabulary, normalized=not adds_space)
    return backend


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a normal piece of two others: those of the piece with the best score first.

    Of one piece that with the longest left part first, for SentencePiece takes the leftmost of equal pairs.
    """
    pieces, scores, kinds = vocabulary
    parts = {piece for piece, kind in zip(pieces, kinds, strict=True) if kind in (NORMAL, UNUSED)}
    merges = []
    for token_id in sorted(range(len(pieces)), key=scores.__getitem__, reverse=True):
        piece = pieces[token_id]
        if kinds[token_id] == NORMAL:
            for cut in range(len(piece) - 1, 0, -1):
                if piece[:cut] in parts and piece[cut:] in parts:
                    merges.append((piece[:cut], piece[cut:]))
    return merges


def _add_marked_pieces(backend: tokenizers.Tokenizer, vocabulary: Vocabulary, *, normalized: bool) -> None:
    """Pieces that text is searched for before anything is merged; `normalized`: those with U+2581 match spaces."""
    special, plain = [], []
    for piece, kind in zip(vocabulary.pieces, vocabulary.kinds, strict=True):
        if kind in (UNKNOWN, CONTROL):
            special.append(AddedToken(piece, special=True, normalized=False))
        elif kind == USER_DEFINED:
            plain.append(AddedToken(piece, special=False, normalized=normalized and SPACE in piece))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)
