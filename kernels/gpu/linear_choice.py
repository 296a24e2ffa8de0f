"""Which way a linear goes: `linear_rows`, or cuBLAS with kernels of their own for what stands around the product.

`prefers_rows` is what was measured on one H200 (torch 2.11, triton 3.6, 2026-11-30; Llama-3.1-8B, microseconds a
linear with all that is around it, own kernel / cuBLAS):

    rows   qkv           output        gate_up       down          head
       1   12.4 / 17.8    8.8 / 13.5   52.7 / 61.6   28.0 / 31.8   230 / 239
       8   17.1 / 18.1   11.0 / 13.3   57.8 / 60.7   31.0 / 32.3   237 / 242
      32   15.7 / 18.6   11.6 / 13.8   57.4 / 65.6   31.6 / 33.6   244 / 258
      64   16.8 / 18.8   13.4 / 11.9   59.9 / 65.4   34.4 / 36.2   254 / 272

`measure_rows` measures a model's own linears where it runs.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .act_mul import act_mul
from .linear_rows import Norm, linear_rows
from .rms_norm import rms_norm

MAX_ROWS = 64
"""More rows always go through cuBLAS."""


def prefers_rows(n: int, k: int, m: int, *, gated: bool, num_sms: int) -> bool:
    """Whether `linear_rows` is the faster way for x [n, k] and out [n, m]."""
    is_small = m <= 32 * num_sms and k <= 4096 and not gated
    return n <= 32 or (n <= MAX_ROWS and not is_small)


def linear_by_parts(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    norm: tuple[Tensor, float, Tensor] | None = None,
    residual: Tensor | None = None,
    activation: tuple[str, Tensor] | None = None,
) -> None:
    """As `linear_rows`, through cuBLAS, for any number of rows; all tensors of one dtype but the norm's weight.
    norm: (weight, eps, room for x after the norm [n, k]); activation: (its name, room for gate and up [n, 2 * m])."""
    if norm is not None:
        norm_weight, eps, normed = norm
        rms_norm(x, norm_weight, eps, normed)
        x = normed
    product = out if activation is None else activation[1]
    if residual is not None:
        torch.addmm(residual, x, weight.t(), out=product)
        if bias is not None:
            product += bias
    elif bias is not None:
        torch.addmm(bias, x, weight.t(), out=product)
    else:
        torch.mm(x, weight.t(), out=product)
    if activation is not None:
        act_mul(product, out, activation[0])


def measure_rows(
    weights: Sequence[Tensor], row_counts: Sequence[int], *, norm: Norm | None, activation: str | None, adds: bool
) -> dict[int, bool]:
    """For each number of rows whether `linear_rows` is faster for linears of these weights, [m, k] each: those of all
    layers, so that no cache holds them. `adds`: a residual is added. Takes some milliseconds and, the first time,
    a second for the compiler. Not while a graph is captured."""
    return {n: n <= MAX_ROWS and _is_faster(n, weights, norm, activation, adds) for n in row_counts}


def _is_faster(n: int, weights: Sequence[Tensor], norm: Norm | None, activation: str | None, adds: bool) -> bool:
    num_weight_rows, k = weights[0].shape
    m = num_weight_rows // 2 if activation else num_weight_rows
    make = {"dtype": weights[0].dtype, "device": weights[0].device}
    x, normed, out, wide = (torch.randn(n, width, **make) for width in (k, k, m, 2 * m))
    residual = out if adds else None
    room = (*norm, normed) if norm else None
    both = (activation, wide) if activation else None

    def by_rows(weight: Tensor) -> None:
        linear_rows(x, weight, out, norm=norm, residual=residual, activation=activation)

    def by_parts(weight: Tensor) -> None:
        linear_by_parts(x, weight, out, norm=room, residual=residual, activation=both)

    return graph_ms(by_rows, weights) < graph_ms(by_parts, weights)


def graph_ms(run: Callable[[Tensor], None], weights: Sequence[Tensor], num_replays: int = 5) -> float:
    """Median time of a CUDA graph that runs every weight's linear once."""
    stream = torch.cuda.Stream(weights[0].device)
    with torch.cuda.stream(stream):
        run(weights[0])
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            run(weight)
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(num_replays + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))
