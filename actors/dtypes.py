"""What `dtype = "auto"` becomes on this machine, and whether and how it computes the one that was named. No torch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from ..checkpoints.shape import Checkpoint, ModelShape
from ..checkpoints.weight_formats import PACKED_DTYPES, PANEL_ROWS, packed_dtype, stored_types
from ..errors import ConfigError
from ..topology import Topology
from ..topology.check_speculative import HEAD_METHODS
from ..topology.device import has_gpu
from ..topology.plan import num_ranks_of, worker_process
from .log import log_event

_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_COMPILED = frozenset({"avx2", "fma", "f16c"})


def resolve_dtypes(topology: Topology, checkpoint: Checkpoint, shape: ModelShape) -> Topology:
    """The topology with dtype and kv_dtype named.

    On a CPU that the compiled kernels know, auto is the format that the checkpoint itself is quantized to; of a
    checkpoint that is not quantized it is bfloat16 where the CPU multiplies that natively, else float32.
    Raises ConfigError if a packed dtype was named and cannot be computed here.
    """
    model = topology.model
    on_cpu = all(process.device == "cpu" for process in topology.process)
    obstacle: str | None = "it is for device cpu"
    if on_cpu:
        obstacle = "it is for one rank" if _has_ranks(topology) else _head_obstacle(topology) or _obstacle(shape)
    dtype: str = model.dtype
    if dtype in PACKED_DTYPES and obstacle is not None:
        raise ConfigError(f"model.dtype {dtype} cannot be computed here: {obstacle}", advice="use float32 or bfloat16")
    if dtype == "auto":
        packed = packed_dtype(stored_types(checkpoint, shape)) if on_cpu else None
        if packed is not None and obstacle is None:
            dtype = packed
        else:
            dtype = "bfloat16" if has_gpu(topology) or _cpu_has_bfloat16() else "float32"
            if packed is not None:
                log_event("model.weights_widened", stored=packed, held=dtype, reason=obstacle)
    kv_dtype: str = model.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = "bfloat16" if dtype in PACKED_DTYPES else dtype
    resolved = msgspec.structs.replace(model, dtype=dtype, kv_dtype=kv_dtype)
    return msgspec.structs.replace(topology, model=resolved)


def compiled_obstacle(topology: Topology, shape: ModelShape) -> str | None:
    """Why a model is computed by torch and not by the compiled step; None if by that. `topology`: dtypes resolved."""
    if worker_process(topology).device != "cpu":
        return "it is for device cpu"
    if _has_ranks(topology):
        return "it computes a model on one rank"
    if topology.model.dtype == "bfloat16" and _cpu_has_bfloat16():
        return "the CPU multiplies bfloat16, which torch makes use of"
    return _head_obstacle(topology) or _obstacle(shape)


def _head_obstacle(topology: Topology) -> str | None:
    section = topology.speculative
    if section is None or section.method not in HEAD_METHODS:
        return None
    return f"heads of the speculative method {section.method} read hidden states that torch computes"


def _has_ranks(topology: Topology) -> bool:
    return any(num_ranks_of(process) > 1 for process in topology.process)


def _obstacle(shape: ModelShape) -> str | None:
    """Why the compiled kernels cannot be used; None if they can."""
    if not cpu_flags() >= _COMPILED:
        return "the CPU has no AVX2 with FMA"
    sizes = {
        "head_dim": shape.head_dim,
        "hidden_size": shape.hidden_size,
        "2 intermediate_size": 2 * shape.intermediate_size,
    }
    for name, size in sizes.items():
        if size % PANEL_ROWS:
            return f"the model's {name} {size} is no multiple of {PANEL_ROWS}"
    return None


def _cpu_has_bfloat16() -> bool:
    return bool(_BFLOAT16 & cpu_flags())


@lru_cache
def cpu_flags() -> frozenset[str]:
    """As in /proc/cpuinfo, of the first core."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    line = next((line for line in info.splitlines() if line.startswith(("flags", "Features"))), "")
    return frozenset(line.split())
