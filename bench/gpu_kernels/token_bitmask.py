"""The kernel for bitmasks on a GPU: checked beside its torch twin, timed in a graph, printed beside what it must move.

    python -m callboard.bench.gpu_kernels.token_bitmask [--rows 1,32,256] [--vocabularies 128256,151936]

`few` masks allow some 50 tokens, as inside a number; `most` forbid as many, as inside a string. The floor is one write
of the logits that change and one read of the others, over the rate of a large copy.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor

from ...kernels.bitmask_words import num_words
from ...kernels.gpu.token_bitmask import apply_token_bitmask
from ...kernels.token_bitmask import apply_token_bitmask as twin
from .sampling import CACHE_BYTES, MAX_SETS
from .timing import COPY_BYTES_PER_S, device_line, microseconds_each

NUM_SET = 50


def make_words(n: int, vocab_size: int, *, allows_few: bool) -> Tensor:
    """int32 [n, num_words] on the GPU: `NUM_SET` random bits of each mask are 1, or 0."""
    size = 32 * num_words(vocab_size)
    bits = torch.zeros(n, size, dtype=torch.int64, device="cuda")
    bits.scatter_(1, torch.randint(vocab_size, (n, NUM_SET), device="cuda"), 1)
    bits = bits if allows_few else 1 - bits
    words = (bits.view(n, -1, 32) << torch.arange(32, device="cuda")).sum(dim=2)
    return words.to(torch.int32)  # the low 32 bits


def line(n: int, vocab_size: int, *, allows_few: bool) -> str:
    """Of float32 logits, a mask for each row."""
    num_bytes = n * vocab_size * 4
    sets = max(2, min(MAX_SETS, int(CACHE_BYTES / num_bytes) + 1))
    all_logits = [torch.randn(n, vocab_size, device="cuda") for _ in range(sets)]
    rows = torch.arange(n, dtype=torch.int32, device="cuda").flip(0)
    words = make_words(n, vocab_size, allows_few=allows_few)
    expected, found = all_logits[0].clone(), all_logits[0].clone()
    twin(expected, rows, words)
    apply_token_bitmask(found, rows, words)
    num_other = int((expected != found).sum())
    time_us = microseconds_each([partial(apply_token_bitmask, logits, rows, words) for logits in all_logits])
    twin_us = microseconds_each([partial(_twin, logits, rows.long(), words) for logits in all_logits])
    floor_us = num_bytes / COPY_BYTES_PER_S * 1e6
    name = "few" if allows_few else "most"
    rate = num_bytes / time_us / 1e3
    return f"{n:>4} {vocab_size:>7} {name:<5}{time_us:9.2f}{floor_us:9.2f}{twin_us:10.2f}{rate:9.0f}  {num_other}"


def _twin(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """As the twin computes it, but for rows that are none, which it has to look for."""
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device="cuda")) & 1
    logits.index_copy_(0, rows, logits[rows].masked_fill_(bits.flatten(1)[:, : logits.shape[1]] == 0, -torch.inf))


def main() -> None:
    parser = argparse.ArgumentParser(description="The kernel for bitmasks on a GPU: checked and timed.")
    parser.add_argument("--rows", default="1,32,256")
    parser.add_argument("--vocabularies", default="128256,151936")
    arguments = parser.parse_args()
    print(device_line())
    print(f"rows   vocab allow{'us':>9}{'floor':>9}{'twin us':>10}{'GB/s':>9}  other than the twin")
    torch.manual_seed(0)
    with torch.inference_mode():
        for vocab_size in map(int, arguments.vocabularies.split(",")):
            for n in map(int, arguments.rows.split(",")):
                for allows_few in (True, False):
                    print(line(n, vocab_size, allows_few=allows_few), flush=True)


if __name__ == "__main__":
    main()
