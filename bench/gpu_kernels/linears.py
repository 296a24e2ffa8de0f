"""Linears of a decode step on a GPU: checked, timed layer by layer with their own weights, beside cuBLAS and the floor.

    python -m callboard.bench.gpu_kernels.linears --model llama-3.1-8b --rows 1,8,32 [--sweep] [--json FILE]

Everything is timed as replays of one CUDA graph that runs a model's layers, each with weights of its own, so that
no cache holds them. `--sweep` first times many tiles for every linear by itself (all layers' weights in one chain)
and then takes the best; without it the tiles are those of `tile_table`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...kernels.gpu.linear_choice import MAX_ROWS, graph_ms, linear_by_parts, prefers_rows
from ...kernels.gpu.linear_rows import linear_rows, linear_rows_twin
from ...kernels.gpu.tile_table import RowDot, RowTiles, choose_tile
from .linear_shapes import MODELS, LinearShape, ModelLinears, candidates

Tile = RowDot | RowTiles
Tried = dict[tuple[int, str], list[Tile]]
"""By number of rows and the linear's name."""
_EPS = 1e-5
_COPY_BYTES_PER_S = 4.26e12
"""Of one H200, read and written: the floor. Reading alone is faster by some percent."""


class Operands:
    """Inputs and outputs of one linear for n rows, bfloat16 on the GPU."""

    def __init__(self, n: int, shape: LinearShape) -> None:
        make = {"device": "cuda", "dtype": torch.bfloat16}
        self.shape = shape
        self.x = torch.randn(n, shape.k, **make)  # type: ignore[call-overload]
        self.out = torch.randn(n, shape.m, **make)  # type: ignore[call-overload]
        self.wide = torch.empty(n, shape.num_weight_rows, **make)  # type: ignore[call-overload]
        self.norm = (torch.rand(shape.k, device="cuda") + 0.5, _EPS) if shape.has_norm else None
        self.normed = torch.empty_like(self.x)

    def by_rows(self, weight: Tensor, tile: Tile | None) -> None:
        shape = self.shape
        linear_rows(
            self.x,
            weight,
            self.out,
            norm=self.norm,
            residual=self.out if shape.has_residual else None,
            activation="silu" if shape.gated else None,
            tile=tile,
        )

    def by_parts(self, weight: Tensor) -> None:
        shape = self.shape
        linear_by_parts(
            self.x,
            weight,
            self.out,
            norm=(*self.norm, self.normed) if self.norm else None,
            residual=self.out if shape.has_residual else None,
            activation=("silu", self.wide) if shape.gated else None,
        )


def random_weights(model: ModelLinears) -> dict[str, list[Tensor]]:
    """By the linear's name, one a layer: bfloat16, of a size that keeps sums near 1."""
    weights = {}
    for shape in (*model.layer, model.head):
        count = 1 if shape is model.head else model.num_layers
        scale = shape.k**-0.5
        weights[shape.name] = [
            torch.randn(shape.num_weight_rows, shape.k, device="cuda", dtype=torch.bfloat16).mul_(scale)
            for _ in range(count)
        ]
    return weights


def relative_error(n: int, shape: LinearShape, tile: Tile | None) -> float:
    """Of the fused linear against float64; also checks that a second run gives the same bits."""
    operands = Operands(n, shape)
    weight = torch.randn(shape.num_weight_rows, shape.k, device="cuda", dtype=torch.bfloat16).mul_(shape.k**-0.5)
    residual = operands.out.clone()
    if shape.name == "head":
        weight = weight[:2000].contiguous()
        operands.out, residual = operands.out[:, :2000].contiguous(), residual[:, :2000]
    outs = []
    for _ in range(2):
        operands.out.copy_(residual if shape.has_residual else torch.full_like(residual, float("nan")))
        operands.by_rows(weight, tile)
        outs.append(operands.out.clone())
    expected = linear_rows_twin(
        operands.x.double(),
        weight,
        norm=operands.norm,
        residual=residual if shape.has_residual else None,
        activation="silu" if shape.gated else None,
    )
    if not torch.equal(*outs):
        return float("inf")
    return float((outs[0].double() - expected).norm() / expected.norm())


def _compile_error(n: int, shape: LinearShape, tile: Tile) -> str | None:
    """What is compiled here lies in Triton's cache afterwards."""
    weight = torch.empty(shape.num_weight_rows, shape.k, device="cuda", dtype=torch.bfloat16)
    try:
        Operands(n, shape).by_rows(weight, tile)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _as_compiled(tile: Tile) -> Tile:
    """Tiles that differ in their grid only are one to the compiler."""
    return replace(tile, programs=1) if isinstance(tile, RowDot) else tile


def _compiled(model: ModelLinears, tried: Tried, deadline: float) -> Tried:
    """What compiles before the deadline."""
    shapes = {shape.name: shape for shape in (*model.layer, model.head)}
    tasks = list(dict.fromkeys((n, shapes[name], _as_compiled(tile)) for (n, name), of in tried.items() for tile in of))
    done: set[tuple[int, str, Tile]] = set()
    for index, (n, shape, tile) in enumerate(tasks):
        if time.monotonic() > deadline:
            print(f"no time left to compile {len(tasks) - index} of {len(tasks)}")
            break
        error = _compile_error(n, shape, tile)
        if error is None:
            done.add((n, shape.name, tile))
        else:
            print(f"left out: {n} rows, {shape.name}, {tile}: {error[:150]}")
    return {
        (n, name): [tile for tile in of if (n, name, _as_compiled(tile)) in done] for (n, name), of in tried.items()
    }


def _us(run: Callable[[Tensor], None], chain: list[Tensor]) -> float:
    """Of one linear of a chain."""
    return 1000 * graph_ms(run, chain) / len(chain)


@dataclass(frozen=True)
class Timing:
    """One linear of one number of rows by one tile; None: through cuBLAS."""

    n: int
    linear: str
    floor_us: float
    tile: Tile | None
    us: float


def sweep(
    model: ModelLinears, weights: dict[str, list[Tensor]], rows: list[int], tried: Tried, deadline: float
) -> list[Timing]:
    """Every candidate that there is time for, best first for each linear and number of rows."""
    timings = []
    for n in rows:
        for shape in (*model.layer, model.head):
            operands, chain = Operands(n, shape), weights[shape.name] * (4 if shape is model.head else 1)
            us: dict[Tile | None, float] = {None: _us(operands.by_parts, chain)}
            for tile in tried[n, shape.name]:
                if time.monotonic() > deadline:
                    break
                us[tile] = _us(partial(operands.by_rows, tile=tile), chain)
            floor_us = shape.num_bytes / _COPY_BYTES_PER_S * 1e6
            timings += [Timing(n, shape.name, floor_us, tile, us[tile]) for tile in sorted(us, key=us.__getitem__)]
    return timings


class Chain:
    """All linears of a step in their order, each reading what an earlier one wrote."""

    def __init__(self, model: ModelLinears, weights: dict[str, list[Tensor]], n: int) -> None:
        self.model, self.weights = model, weights
        self.operands = {shape.name: Operands(n, shape) for shape in (*model.layer, model.head)}
        each = self.operands
        self.hidden = hidden = each["output"].out
        each["qkv"].x = each["gate_up"].x = each["down"].out = each["head"].x = hidden
        each["output"].x = each["qkv"].out[:, : each["output"].shape.k]
        each["down"].x = each["gate_up"].out
        self._start = hidden.clone()

    def step(self, tiles: dict[str, Tile | None], between: Callable[[], None] = lambda: None) -> None:
        """A linear whose tile is None goes through cuBLAS."""
        self.hidden.copy_(self._start)
        for layer in range(self.model.num_layers):
            for shape in self.model.layer:
                self._run(shape.name, layer, tiles)
                between()
        self._run("head", 0, tiles)

    def _run(self, name: str, layer: int, tiles: dict[str, Tile | None]) -> None:
        each, weight, tile = self.operands[name], self.weights[name][layer], tiles[name]
        if tile is None:
            each.by_parts(weight)
        else:
            each.by_rows(weight, tile)

    def ms(self, tiles: dict[str, Tile | None]) -> float:
        return graph_ms(lambda _: self.step(tiles), [self.hidden], 11)

    def is_as_one_by_one(self, tiles: dict[str, Tile | None]) -> bool:
        """Whether a replay, where kernels overlap, gives the bits of kernels that run each by itself."""
        self.ms(tiles)
        overlapped = self.operands["head"].out.clone()
        self.step(tiles, torch.cuda.synchronize)
        return torch.equal(overlapped, self.operands["head"].out)


def _table_tile(n: int, shape: LinearShape) -> Tile | None:
    """What an engine would use; None: cuBLAS."""
    num_sms = torch.cuda.get_device_properties().multi_processor_count
    if not prefers_rows(n, shape.k, shape.m, gated=shape.gated, num_sms=num_sms):
        return None
    return choose_tile(n, shape.k, shape.m, gated=shape.gated, num_sms=num_sms)


def print_best(timings: list[Timing], top: int) -> dict[tuple[int, str], Tile | None]:
    """Print the best tiles of every linear; returns the best of each, None where there is none."""
    best: dict[tuple[int, str], Tile | None] = {}
    for key in dict.fromkeys((timing.n, timing.linear) for timing in timings):
        of_linear = [timing for timing in timings if (timing.n, timing.linear) == key]
        ours = [timing for timing in of_linear if timing.tile is not None]
        best[key] = ours[0].tile if ours else None
        cublas = next(timing for timing in of_linear if timing.tile is None)
        print(f"{key[0]:4} {key[1]:8} floor {cublas.floor_us:7.2f} cuBLAS {cublas.us:7.2f} us")
        for timing in ours[:top]:
            print(f"              {timing.us:7.2f} {timing.tile}")
    return best


def time_chains(
    model: ModelLinears, weights: dict[str, list[Tensor]], rows: list[int], best: dict[tuple[int, str], Tile | None]
) -> list[dict[str, float]]:
    """Print and return milliseconds of all linears of a step, with the error of the tiles used."""
    shapes, lines = (*model.layer, model.head), []
    for n in rows:
        table = {shape.name: _table_tile(n, shape) for shape in shapes}
        tiles = {shape.name: best.get((n, shape.name), table[shape.name]) for shape in shapes}
        chain = Chain(model, weights, n)
        line = {"rows": n, "cuBLAS": chain.ms(dict.fromkeys(tiles, None)), "table": chain.ms(table)}
        if best:
            line["best"] = chain.ms(tiles)
        errors = [relative_error(n, shape, tiles[shape.name]) for shape in shapes if tiles[shape.name]]
        line |= {"error": max(errors, default=0.0), "as one by one": chain.is_as_one_by_one(tiles)}
        lines.append(line)
        print("  ".join(f"{name} {value:.4g}" for name, value in line.items()))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="llama-3.1-8b")
    parser.add_argument("--rows", default="1,2,4,8,16,32", help="numbers of rows, comma between")
    parser.add_argument("--sweep", action="store_true", help="try many tiles first")
    parser.add_argument("--seconds", type=float, default=90, help="what a sweep may take")
    parser.add_argument("--top", type=int, default=4, help="tiles printed for a linear")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    arguments = parser.parse_args()
    begun = time.monotonic()
    model, rows = MODELS[arguments.model], [int(n) for n in arguments.rows.split(",")]
    tried: Tried = {}
    if arguments.sweep:
        shapes = (*model.layer, model.head)
        tried = {(n, shape.name): candidates(n, shape, 132) if n <= MAX_ROWS else [] for n in rows for shape in shapes}
        tried = _compiled(model, tried, begun + 0.5 * arguments.seconds)
        print(f"{sum(map(len, tried.values()))} tiles to try, compiled at {time.monotonic() - begun:.0f} s", flush=True)
    weights = random_weights(model)
    timings = sweep(model, weights, rows, tried, begun + arguments.seconds) if arguments.sweep else []
    best = print_best(timings, arguments.top)
    device, floor_ms = torch.cuda.get_device_name(), 1000 * model.num_bytes / _COPY_BYTES_PER_S
    print(f"{device}, {arguments.model}: all linears of a step, ms; floor {floor_ms:.3f}")
    lines = time_chains(model, weights, rows, best)
    if arguments.json:
        swept = [asdict(timing) for timing in timings]
        arguments.json.write_text(
            json.dumps({"device": device, "model": arguments.model, "swept": swept, "chains": lines})
        )
    print(f"done at {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
