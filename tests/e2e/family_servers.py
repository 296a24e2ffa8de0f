"""A tiny random model of any family, served: the same weights are in transformers, which is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from callboard.bench.random_model import NUM_BYTE_TOKENS, write_random_model
from callboard.bench.server_process import ServerProcess
from callboard.tests.models.families import make_oracle

ONE_PROCESS = Path(__file__).resolve().parents[2] / "examples" / "one_process.toml"
BLOCK = 8
NUM_BLOCKS = 24
"""Room for the longest request and little more: a few prompts at once preempt each other."""
BUDGET_16 = ("scheduler.max_num_batched_tokens=16", "scheduler.max_num_seqs=16")
CHUNK_16 = ("scheduler.long_prefill_token_threshold=16", "scheduler.max_num_seqs=64")


class FamilyServer(NamedTuple):
    """A server and what it must say."""

    server: ServerProcess
    oracle: PreTrainedModel


@contextmanager
def serve_family(name: str, folder: Path, *settings: str) -> Iterator[FamilyServer]:
    """A case of `families.CASES` in float32, all actors in one process, with a pool of NUM_BLOCKS blocks.

    The vocabulary is that of the byte tokenizer, which `folder` gets with the weights.
    """
    write_random_model(folder)
    with torch.inference_mode():
        oracle = make_oracle(name, vocab_size=NUM_BYTE_TOKENS)
        oracle.save_pretrained(folder)
    pairs = (
        "process.all.threads=1",
        "model.dtype=float32",
        f"kv_cache.block_size={BLOCK}",
        f"kv_cache.num_blocks={NUM_BLOCKS}",
        *settings,
    )
    words = [word for pair in pairs for word in ("--set", pair)]
    with ServerProcess(str(folder), "--topology", str(ONE_PROCESS), *words) as server:
        yield FamilyServer(server, oracle)
