"""How fast quantized blocks become float32, beside the gguf package: python -m callboard.bench.dequantize."""

from __future__ import annotations

import time
from collections.abc import Callable

import gguf
import numpy as np

from ..checkpoints.gguf_types import BLOCKS
from ..models.gguf_dequantize import DEQUANTIZERS, dequantize

_NUM_ROWS, _NUM_COLUMNS, _REPEATS = 512, 2048, 5


def main() -> None:
    """Print a line a type: millions of elements a second, here and there, and MB/s of file. The best of five."""
    print(f"{'type':8}{'Melem/s':>9}{'MB/s':>7}{'gguf':>7}")
    num_elements = _NUM_ROWS * _NUM_COLUMNS
    for name in DEQUANTIZERS:
        block_elements, block_bytes = BLOCKS[name]
        raw = np.full((_NUM_ROWS, _NUM_COLUMNS // block_elements * block_bytes), 1, np.uint8)
        kind = gguf.GGMLQuantizationType[name]
        ours = _best_s(lambda raw=raw, name=name: dequantize(raw, name))  # type: ignore[misc]
        line = f"{name:8}{num_elements / ours / 1e6:9.0f}{raw.nbytes / ours / 1e6:7.0f}"
        try:
            theirs = _best_s(lambda raw=raw, kind=kind: gguf.quants.dequantize(raw, kind))  # type: ignore[misc]
        except NotImplementedError:
            print(f"{line}{'-':>7}")
            continue
        print(f"{line}{num_elements / theirs / 1e6:7.0f}")


def _best_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
