"""`tokenizer.model`: a SentencePiece model, which is one protocol buffer message; read without its compiler.

Fields: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import CorruptCheckpoint, UnsupportedModel
from .sentencepiece import NORMAL, Vocabulary

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_BPE = 2
_MODEL_KINDS = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
MAX_PIECES = 1 << 22


class SentencePieceModel(NamedTuple):
    """What of the file decides how a text is encoded."""

    vocabulary: Vocabulary
    adds_space: bool


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """The model at `path`. Raises CorruptCheckpoint, UnsupportedModel (not BPE, a normalization of its own)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptCheckpoint(f"cannot read {path}: {error.strerror}") from error
    pieces: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    model_kind, adds_space, charsmap, squeezes_spaces = 1, True, b"", True
    try:
        for number, value in _fields(data):
            if number == _PIECES and isinstance(value, bytes):
                piece, score, kind = _piece(value)
                pieces.append(piece)
                scores.append(score)
                kinds.append(kind)
            elif number == _TRAINER and isinstance(value, bytes):
                model_kind = _integers(value).get(3, 1)
            elif number == _NORMALIZER and isinstance(value, bytes):
                settings = _integers(value)
                adds_space, squeezes_spaces = bool(settings.get(3, 1)), bool(settings.get(4, 1))
                charsmap = b"".join(text for key, text in _fields(value) if key == 2 and isinstance(text, bytes))
    except (ValueError, IndexError, struct.error) as error:
        raise CorruptCheckpoint(f"{path} is no SentencePiece model: {error}", advice="fetch it again") from error
    if not pieces or len(pieces) > MAX_PIECES:
        raise CorruptCheckpoint(f"{path} is no SentencePiece model: it has {len(pieces):,} pieces")
    if model_kind != _BPE or charsmap or squeezes_spaces:
        what = f"of kind {_MODEL_KINDS.get(model_kind, model_kind)}" if model_kind != _BPE else "that normalizes texts"
        raise UnsupportedModel(
            f"{path}: a SentencePiece model {what} is not supported",
            advice="save the tokenizer once as a fast one, which writes tokenizer.json",
        )
    return SentencePieceModel(Vocabulary(pieces, scores, kinds), adds_space)


def _piece(data: bytes) -> tuple[str, float, int]:
    piece, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            piece = value.decode()
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    return piece, score, kind


def _integers(data: bytes) -> dict[int, int]:
    """The fields that are integers; the last one counts."""
    return {number: value for number, value in _fields(data) if isinstance(value, int)}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message: an integer, or the bytes of anything else. Raises ValueError, IndexError."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"byte {at:,} begins no field")
        if length > end - at:
            raise ValueError(f"it ends within the field at byte {at:,}")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends): seven bits a byte, the lowest first."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number at byte {at:,} does not end")
