"""Attention by our kernels and by FlashAttention 3, on the same inputs one after the other; of every shape, also of
those that `attention = "flash_attention"` leaves to our kernels.

    python -m callboard.bench.gpu_kernels.attention_backends

Microseconds of a launch in a graph of launches that each have a cache of their own; "difference" is
||library - ours|| / ||ours||.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from functools import partial

import torch

from ...kernels.device_operations import PagedCache, RowTables
from ...kernels.gpu.attention_backend import TritonAttention
from ...kernels.gpu.flash_attention import Attend, find_function
from .attention import BLOCK_SIZE, DECODE_SHAPES, HEAD_DIM, MODELS, VARLEN_SHAPES, Inputs, make_inputs, num_sets
from .timing import device_line, microseconds_each

_SCALE = HEAD_DIM**-0.5


def attend_ours(own: TritonAttention, longest: int, inputs: Inputs, starts: torch.Tensor) -> None:
    cache = PagedCache(inputs.keys, inputs.values, BLOCK_SIZE)
    rows = RowTables(inputs.block_tables, inputs.kv_lens, starts if longest > 1 else None, longest)
    own.attend(inputs.q, cache, rows, inputs.out, scale=_SCALE, window=None)


def attend_by_library(library: Attend, longest: int, inputs: Inputs, starts: torch.Tensor) -> None:
    keys, values = (side.view(-1, BLOCK_SIZE, *side.shape[1:]) for side in (inputs.keys, inputs.values))
    library(
        inputs.q, keys, values, inputs.block_tables, starts, inputs.kv_lens, longest, _SCALE, (-1, 0), inputs.out
    )  # fmt: skip


def compare(library: Attend, model: str, query_lens: list[int], kv_lens: list[int]) -> str:
    """A line of the table."""
    num_heads, kv_heads = MODELS[model]
    longest = max(query_lens)
    starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32, device="cuda")
    sets = [make_inputs(model, kv_lens, sum(query_lens)) for _ in range(num_sets(kv_lens, kv_heads))]
    own = TritonAttention(num_heads, kv_heads, HEAD_DIM, torch.device("cuda", 0))
    times: list[float] = []
    outs = []
    for attend in (partial(attend_ours, own, longest), partial(attend_by_library, library, longest)):
        times.append(microseconds_each([partial(attend, inputs, starts) for inputs in sets]))
        outs.append(sets[0].out.float())
    difference = float((outs[1] - outs[0]).norm() / outs[0].norm())
    what = f"{model} {len(kv_lens)} x {longest} of {kv_lens[0]}"
    return f"{what:<36}{times[0]:10.1f}{times[1]:12.1f}{times[1] / times[0]:8.2f}{difference:12.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    library = find_function()
    if library is None:
        sys.exit("FlashAttention 3 is not installed")
    print(device_line())
    print(f"{'rows x tokens of keys':<36}{'ours us':>10}{'library us':>12}{'ratio':>8}{'difference':>12}")
    torch.manual_seed(0)
    with torch.inference_mode():
        for model, kv_lens in DECODE_SHAPES:
            print(compare(library, model, [1] * len(kv_lens), kv_lens), flush=True)
        for model, query_lens, kv_lens in VARLEN_SHAPES:
            print(compare(library, model, query_lens, kv_lens), flush=True)


if __name__ == "__main__":
    main()
