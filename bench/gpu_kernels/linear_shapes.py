"""The linears of three models, and the tiles that a sweep tries for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...kernels.gpu.tile_table import RowDot, RowTiles


@dataclass(frozen=True)
class LinearShape:
    """out [n, m] of x [n, k]; where gated the weight has 2 * m rows."""

    name: str
    k: int
    m: int
    has_norm: bool = False
    gated: bool = False
    has_residual: bool = False

    @property
    def num_weight_rows(self) -> int:
        return 2 * self.m if self.gated else self.m

    @property
    def num_bytes(self) -> int:
        """Of the weight in bfloat16."""
        return 2 * self.k * self.num_weight_rows


@dataclass(frozen=True)
class ModelLinears:
    num_layers: int
    layer: tuple[LinearShape, ...]
    head: LinearShape

    @property
    def num_bytes(self) -> int:
        return self.num_layers * sum(shape.num_bytes for shape in self.layer) + self.head.num_bytes


def _model(num_layers: int, hidden: int, q: int, kv: int, intermediate: int, vocab: int) -> ModelLinears:
    """`q` and `kv`: width of all query heads, and of all key heads."""
    return ModelLinears(
        num_layers,
        (
            LinearShape("qkv", hidden, q + 2 * kv, has_norm=True),
            LinearShape("output", q, hidden, has_residual=True),
            LinearShape("gate_up", hidden, intermediate, has_norm=True, gated=True),
            LinearShape("down", intermediate, hidden, has_residual=True),
        ),
        LinearShape("head", hidden, vocab),
    )


MODELS = {
    "llama-3.1-8b": _model(32, 4096, 4096, 1024, 14336, 128256),
    "llama-2-7b": _model(32, 4096, 4096, 4096, 11008, 32000),
    "qwen3-0.6b": _model(28, 1024, 2048, 1024, 3072, 151936),
}

_SHARED_BYTES = 220 << 10
"""What a program may hold on a Hopper GPU."""

_ROW_CUTS = (
    (1, None, 8, (4,)), (2, None, 4, (4,)), (2, None, 8, (2, 4)), (4, None, 8, (2,)), (4, None, 16, (2,)),
    (8, None, 8, (1, 4)), (2, None, 16, (1, 3)),
)  # fmt: skip
_CHUNK_CUTS = ((2, 1024, 4), (4, 1024, 4), (8, 1024, 4), (4, 2048, 8), (8, 2048, 8))
"""block_m, block_k, warps, and programs a multiprocessor."""

_TILE_CUTS = (
    (16, 256, 4, 4), (32, 128, 5, 4), (32, 256, 4, 4), (64, 64, 6, 4), (64, 128, 4, 4), (64, 128, 6, 4),
    (128, 64, 6, 8), (128, 128, 3, 8),
)  # fmt: skip
"""block_m, block_k, stages, warps."""


def candidates(n: int, shape: LinearShape, num_sms: int) -> list[RowDot | RowTiles]:
    return [*_row_dots(n, shape, num_sms), *_row_tiles(n, shape, num_sms)]


def _row_dots(n: int, shape: LinearShape, num_sms: int) -> Iterator[RowDot]:
    width = 2 if shape.gated else 1
    if n == 1:
        for block_m, _, warps, counts in _ROW_CUTS:
            values = block_m * width * (1 << (shape.k - 1).bit_length()) // (32 * warps)
            if 8 <= values <= 64:
                yield from (RowDot(block_m, warps, programs) for programs in counts)
    if n <= 4:
        for block_m, block_k, warps in _CHUNK_CUTS:
            if block_k < shape.k and block_m * width * (n + 1) <= 32:
                for programs in (2, 3, 4) if warps == 8 else (4, 6, 8):
                    if programs * num_sms <= 1.2 * shape.m / block_m:
                        yield RowDot(block_m, warps, programs, block_k)


def _row_tiles(n: int, shape: LinearShape, num_sms: int) -> Iterator[RowTiles]:
    block_n = max(8, 1 << (n - 1).bit_length())
    for block_m, block_k, stages, warps in _TILE_CUTS:
        width = 2 if shape.gated else 1
        step_bytes = (block_m * width + block_n) * block_k * 2
        if n == 1 or block_k > shape.k or step_bytes * stages > _SHARED_BYTES or (n > 32 and block_m < 64):
            continue
        resident = min(_SHARED_BYTES // (step_bytes * stages), 8)
        for splits in (1, 2, 3, 4, 6, 8):
            programs = -(-shape.m // block_m) * -(-n // block_n) * splits
            # Programs that fill the GPU once, or many times.
            if (
                splits * block_k <= shape.k
                and programs / (num_sms * resident) >= 0.6
                and (splits == 1 or programs <= num_sms * resident)
            ):
                for prefetch_bytes in (16 << 10, 64 << 10):
                    yield RowTiles(
                        block_n,
                        block_m,
                        block_k,
                        warps,
                        stages,
                        splits,
                        max(1, prefetch_bytes // (block_m * width * block_k * 2)),
                    )
