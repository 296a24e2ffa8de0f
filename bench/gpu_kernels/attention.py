"""Attention kernels and the rotary write on a GPU: checked, timed, printed beside what reading their bytes takes.

    python -m callboard.bench.gpu_kernels.attention [decode] [varlen] [rotary] [--scan]

`--scan` times decode attention with other cuts of the work, too. Decode: times of a launch in a graph of launches that
each have a cache of their own; the floor is keys and values over the copy bandwidth. Varlen: beside
`scaled_dot_product_attention` on the same tokens without pages.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels.gpu.attention_twin import attend_plainly
from ...kernels.gpu.decode_attention import DecodeTiles, DecodeWorkspace, choose_tiles, decode_attention
from ...kernels.gpu.rotary_kv_write import rotary_kv_write, rotate_and_write_plainly
from ...kernels.gpu.varlen_attention import varlen_attention
from .timing import COPY_BYTES_PER_S, device_line, microseconds_each

BLOCK_SIZE = 16
HEAD_DIM = 128
MODELS = {"Llama-3.1-8B": (32, 8), "Llama-2-7B": (32, 32), "Qwen3-0.6B": (16, 8)}
DECODE_SHAPES = [
    *(("Llama-3.1-8B", [576] * n) for n in (1, 8, 32, 64, 128, 256)),
    *(("Llama-2-7B", [576] * n) for n in (1, 32, 256)),
    *(("Qwen3-0.6B", [576] * n) for n in (1, 32, 256)),
    *(("Llama-3.1-8B", [kv_len] * n) for kv_len, n in ((8192, 1), (8192, 32), (32768, 1), (32768, 16))),
    ("Llama-3.1-8B", [16384, *[200] * 127]),
    *(("Llama-3.1-8B", [513 + 89 * i % 128 for i in range(n)]) for n in (8, 32, 64, 128, 256)),
]
VARLEN_SHAPES = [
    ("Llama-3.1-8B", [512], [512]),
    ("Llama-3.1-8B", [2048], [2048]),
    ("Llama-3.1-8B", [8192], [8192]),
    ("Llama-3.1-8B", [2048], [8192]),
    ("Llama-3.1-8B", [5] * 32, [576] * 32),
    ("Llama-3.1-8B", [1984, *[1] * 64], [1984, *[576] * 64]),
    ("Llama-2-7B", [2048], [2048]),
]
CACHE_BYTES = 400e6
"""Inputs of a graph's launches together, at least: several times the second-level cache of an H200."""


@dataclass(frozen=True)
class Inputs:
    """Of one launch: q and out [t, num_heads, HEAD_DIM] bf16, a cache of its own, rows in scattered blocks."""

    q: Tensor
    keys: Tensor
    values: Tensor
    block_tables: Tensor
    kv_lens: Tensor
    out: Tensor


def make_inputs(model: str, kv_lens: list[int], num_tokens: int) -> Inputs:
    num_heads, kv_heads = MODELS[model]
    blocks = [-(-kv_len // BLOCK_SIZE) for kv_len in kv_lens]
    order = torch.randperm(sum(blocks), dtype=torch.int32)
    tables = torch.zeros(len(kv_lens), max(blocks), dtype=torch.int32)
    for row, (first, count) in enumerate(zip(itertools.accumulate([0, *blocks]), blocks, strict=False)):
        tables[row, :count] = order[first : first + count]
    normal = {"dtype": torch.bfloat16, "device": "cuda"}
    q = torch.randn(num_tokens, num_heads, HEAD_DIM, **normal)  # type: ignore[call-overload]
    keys = torch.randn(sum(blocks) * BLOCK_SIZE, kv_heads, HEAD_DIM, **normal)  # type: ignore[call-overload]
    values = torch.randn_like(keys)
    lens = torch.tensor(kv_lens, dtype=torch.int32)
    return Inputs(q, keys, values, tables.cuda(), lens.cuda(), torch.full_like(q, torch.nan))


def num_sets(kv_lens: list[int], kv_heads: int) -> int:
    """How many launches with inputs of their own are timed together."""
    return max(3, min(40, int(CACHE_BYTES / (sum(kv_lens) * kv_heads * HEAD_DIM * 4)) + 1))


def relative_error(inputs: Inputs, query_lens: list[int]) -> float:
    """||out - twin in float32|| / ||twin||."""
    starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32)
    expected = attend_plainly(
        inputs.q.float(), inputs.keys.float(), inputs.values.float(), inputs.block_tables, starts, inputs.kv_lens,
        block_size=BLOCK_SIZE, scale=HEAD_DIM**-0.5, window=None,
    )  # fmt: skip
    return float((inputs.out.float() - expected).norm() / expected.norm())


def decode(inputs: Inputs, workspace: DecodeWorkspace, tiles: DecodeTiles | None) -> None:
    decode_attention(
        inputs.q, inputs.keys, inputs.values, inputs.block_tables, inputs.kv_lens, inputs.out,
        block_size=BLOCK_SIZE, scale=HEAD_DIM**-0.5, window=None, workspace=workspace, tiles=tiles,
    )  # fmt: skip


SCAN = [
    DecodeTiles(block_n=block_n, num_warps=warps, num_stages=stages, programs_per_sm=programs, min_tiles=tiles)
    for block_n, warps, stages, programs, tiles in (
        (64, 4, 3, 3, 1),
        (64, 4, 4, 2, 1),
        (64, 4, 4, 2, 2),
        (32, 4, 3, 4, 1),
        (32, 4, 4, 3, 1),
        (32, 4, 3, 2, 1),
        (16, 4, 3, 4, 1),
        (128, 8, 3, 1, 1),
    )
]


def time_decode(is_scan: bool) -> None:
    print(f"\n{'decode attention':<26}{'error':>9}{'us':>9}{'floor us':>10}{'TB/s':>7}  tiles")
    for model, kv_lens in DECODE_SHAPES:
        num_heads, kv_heads = MODELS[model]
        workspace = DecodeWorkspace(torch.device("cuda", 0), num_heads, kv_heads, HEAD_DIM)
        sets = [make_inputs(model, kv_lens, len(kv_lens)) for _ in range(num_sets(kv_lens, kv_heads))]
        num_bytes = sum(kv_lens) * kv_heads * HEAD_DIM * 4
        chosen = choose_tiles(len(kv_lens) * kv_heads, HEAD_DIM, 2)
        found = []
        for tiles in [chosen, *(SCAN if is_scan else [])]:
            time_us = microseconds_each([partial(decode, inputs, workspace, tiles) for inputs in sets])
            found.append((time_us, relative_error(sets[0], [1] * len(kv_lens)), tiles))
            sets[0].out.fill_(torch.nan)
        for time_us, error, tiles in [found[0], *sorted(found[1:])]:
            print(
                f"{model + f' {len(kv_lens)} x {kv_lens[0]}':<26}{error:9.1e}{time_us:9.2f}"
                f"{num_bytes / COPY_BYTES_PER_S * 1e6:10.2f}{num_bytes / time_us / 1e6:7.2f}  "
                + " ".join(str(int(x)) for x in tiles)
            )


def time_varlen() -> None:
    print(f"\n{'varlen attention':<40}{'error':>9}{'us':>9}{'TFLOP/s':>9}{'torch us':>10}")
    for model, query_lens, kv_lens in VARLEN_SHAPES:
        num_heads = MODELS[model][0]
        starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32, device="cuda")
        sets = [make_inputs(model, kv_lens, sum(query_lens)) for _ in range(4)]

        def attend(inputs: Inputs, starts: Tensor = starts, longest: int = max(query_lens)) -> None:
            varlen_attention(
                inputs.q, inputs.keys, inputs.values, inputs.block_tables, starts, inputs.kv_lens, inputs.out,
                block_size=BLOCK_SIZE, scale=HEAD_DIM**-0.5, window=None, max_query_len=longest,
            )  # fmt: skip

        time_us = microseconds_each([partial(attend, inputs) for inputs in sets])
        pairs = sum(q * kv - q * (q - 1) / 2 for q, kv in zip(query_lens, kv_lens, strict=True))
        rate = 4 * pairs * num_heads * HEAD_DIM / time_us / 1e6
        error = relative_error(sets[0], query_lens)
        beside = f"{time_dense(model, query_lens[0]):10.1f}" if query_lens == kv_lens else ""
        name = f"{model} {len(kv_lens)} rows, {query_lens[0]} of {kv_lens[0]}"
        print(f"{name:<40}{error:9.1e}{time_us:9.1f}{rate:9.0f}{beside}")


def time_dense(model: str, length: int) -> float:
    """torch's own attention on one row without pages, microseconds."""
    num_heads, kv_heads = MODELS[model]
    q, k, v = (
        torch.randn(1, heads, length, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        for heads in (num_heads, kv_heads, kv_heads)
    )
    return microseconds_each([lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)] * 4)


def time_rotary() -> None:
    """Alone, and in front of decode attention, as in a layer."""
    print(f"\n{'rotary, write to cache':<26}{'error':>9}{'us':>9}{'with decode attention us':>26}")
    for (model, (num_heads, kv_heads)), n in itertools.product(MODELS.items(), (1, 32, 256)):
        kv_lens = [576] * n
        workspace = DecodeWorkspace(torch.device("cuda", 0), num_heads, kv_heads, HEAD_DIM)
        sets = [make_inputs(model, kv_lens, n) for _ in range(num_sets(kv_lens, kv_heads))]
        width = (num_heads + 2 * kv_heads) * HEAD_DIM
        qkv = torch.randn(n, width, dtype=torch.bfloat16, device="cuda")
        angles = torch.randn(1024, 2, 1, HEAD_DIM, device="cuda")
        positions = torch.full((n,), 575, device="cuda")
        norm = torch.rand(num_heads + kv_heads, HEAD_DIM, device="cuda") if model.startswith("Qwen3") else None
        last = sets[0].block_tables[:, 575 // BLOCK_SIZE].long() * BLOCK_SIZE + 575 % BLOCK_SIZE

        def write(
            s: Inputs, qkv: Tensor = qkv, p: Tensor = positions, a: Tensor = angles, last: Tensor = last,
            norm: Tensor | None = norm,
        ) -> None:  # fmt: skip
            rotary_kv_write(qkv, p, a, last, s.keys, s.values, s.q, norm_weight=norm, eps=1e-6)

        alone = microseconds_each([partial(write, inputs) for inputs in sets])
        pairs = [(partial(write, inputs), partial(decode, inputs, workspace, None)) for inputs in sets]
        both = 2 * microseconds_each([launch for pair in pairs for launch in pair])
        expected = torch.empty_like(sets[0].q, dtype=torch.float32)
        caches = (sets[0].keys.clone(), sets[0].values.clone())
        rotate_and_write_plainly(qkv.float(), positions, angles, last, *caches, expected, norm_weight=norm, eps=1e-6)
        error = float((sets[0].q.float() - expected).norm() / expected.norm())
        print(f"{model + f' {n}':<26}{error:9.1e}{alone:9.2f}{both:26.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention kernels on a GPU: checked and timed.")
    parser.add_argument("parts", nargs="*", choices=["decode", "varlen", "rotary", []], default=[])
    parser.add_argument("--scan", action="store_true", help="decode attention with other cuts of the work, too")
    arguments = parser.parse_args()
    print(device_line())
    torch.manual_seed(0)
    with torch.inference_mode():
        if not arguments.parts or "decode" in arguments.parts:
            time_decode(arguments.scan)
        if not arguments.parts or "varlen" in arguments.parts:
            time_varlen()
        if not arguments.parts or "rotary" in arguments.parts:
            time_rotary()


if __name__ == "__main__":
    main()
