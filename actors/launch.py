"""From a topology to all that a start needs: files found, shape read, limits checked, memory planned. No torch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..checkpoints import Progress, read_shape, resolve_checkpoint
from ..checkpoints.shape import Checkpoint, ModelShape
from ..topology import (
    MemoryLedger,
    Places,
    Problem,
    Topology,
    arithmetic_of,
    ensure_valid,
    max_model_len_of,
    plan_memory,
    raise_problems,
)


class Launch(msgspec.Struct, frozen=True):
    """What the supervisor starts."""

    topology: Topology
    """With dtype and kv_dtype resolved."""
    checkpoint: Checkpoint
    shape: ModelShape
    max_model_len: int
    ledger: MemoryLedger


def prepare_launch(topology: Topology, progress: Progress | None = None) -> Launch:
    """Find the model (fetching it if need be) and check the topology against it. Raises ConfigError and its kinds."""
    ensure_valid(topology, None)
    checkpoint, shape, topology = find_model(topology, progress)
    raise_problems(check_load(topology, checkpoint), Places(""))
    ensure_valid(topology, shape)
    return plan_launch(topology, checkpoint, shape)


def find_model(topology: Topology, progress: Progress | None = None) -> tuple[Checkpoint, ModelShape, Topology]:
    """The model's files, what it is, and the topology with dtype and kv_dtype resolved. Raises ConfigError."""
    checkpoint = resolve_checkpoint(topology.model.source, progress=progress)
    return checkpoint, read_shape(checkpoint), _resolve_dtypes(topology)


def check_load(topology: Topology, checkpoint: Checkpoint) -> list[Problem]:
    """The loader follows from the files: one that was named must be the one for them."""
    load = topology.model.load
    if load in ("auto", "dummy", checkpoint.format):
        return []
    got = f'load = "{load}", but {checkpoint.path} is loaded as {checkpoint.format}'
    advice = "leave load out, or name a model of that format (of a directory with both: the .gguf file)"
    return [Problem(("model", "load"), got, "", advice)]


def plan_launch(topology: Topology, checkpoint: Checkpoint, shape: ModelShape) -> Launch:
    """For a topology without problems, dtypes resolved. Raises NotEnoughMemory."""
    ledger = plan_memory(topology, shape, _available_bytes(), arithmetic_of(topology, _cpu_flags()))
    return Launch(topology, checkpoint, shape, max_model_len_of(topology, shape), ledger)


def _resolve_dtypes(topology: Topology) -> Topology:
    """`auto` is bfloat16 where the CPU multiplies it natively, else float32."""
    model = topology.model
    dtype = model.dtype
    if dtype == "auto":
        dtype = "bfloat16" if _cpu_has_bfloat16() else "float32"
    kv_dtype = dtype if model.kv_dtype == "auto" else model.kv_dtype
    return msgspec.structs.replace(topology, model=msgspec.structs.replace(model, dtype=dtype, kv_dtype=kv_dtype))


def _cpu_has_bfloat16() -> bool:
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & _cpu_flags())


def _cpu_flags() -> set[str]:
    """As in /proc/cpuinfo, of the first core."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    line = next((line for line in info.splitlines() if line.startswith(("flags", "Features"))), "")
    return set(line.split())


def _available_bytes() -> int:
    """Memory that processes can still get: the machine's, or what the cgroup leaves if that is less."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    left = _cgroup_bytes_left(Path("/sys/fs/cgroup"))
    return available if left is None else min(available, left)


def _cgroup_bytes_left(cgroup: Path) -> int | None:
    """What a control group (version 2) leaves of its limit; None without a limit.

    Its use counts the files that its processes have read, a model that was just fetched among them; what of them lies
    idle the kernel takes back first.
    """
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        counts = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    return None if limit == "max" else int(limit) - used + int(counts.get("inactive_file", 0))
