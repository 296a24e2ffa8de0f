"""From a topology to all that a start needs: files found, shape read, limits checked, memory planned. No torch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..checkpoints import Progress, read_shape, resolve_checkpoint
from ..checkpoints.draft_heads import find_head
from ..checkpoints.shape import Checkpoint, DraftCheckpoint, ModelShape
from ..checkpoints.weight_formats import held_bits, stored_types
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
from ..topology.arithmetic import Arithmetic
from ..topology.check_speculative import HEAD_METHODS, MODEL_METHODS, check_draft_model
from ..topology.device import has_gpu
from ..topology.memory import DraftSizes
from ..topology.plan import worker_process
from .answer_parsers import resolve_parsers
from .device_memory import free_device_bytes
from .dtypes import compiled_obstacle, cpu_flags, resolve_dtypes


class Launch(msgspec.Struct, frozen=True):
    """What the supervisor starts."""

    topology: Topology
    """With dtypes and parsers resolved."""
    checkpoint: Checkpoint
    shape: ModelShape
    max_model_len: int
    ledger: MemoryLedger
    draft: DraftCheckpoint | None = None


def prepare_launch(topology: Topology, progress: Progress | None = None) -> Launch:
    """Find the model (fetching it if need be) and check the topology against it. Raises ConfigError and its kinds."""
    ensure_valid(topology, None)
    checkpoint, shape, topology = find_model(topology, progress)
    draft = find_draft(topology, checkpoint, shape, progress)
    raise_problems(check_load(topology, checkpoint), Places(""))
    ensure_valid(topology, shape)
    raise_problems(check_draft(topology, shape, draft), Places(""))
    return plan_launch(topology, checkpoint, shape, draft)


def find_model(topology: Topology, progress: Progress | None = None) -> tuple[Checkpoint, ModelShape, Topology]:
    """The model's files, what it is, and the topology with dtypes and parsers resolved. Raises ConfigError."""
    checkpoint = resolve_checkpoint(topology.model.source, progress=progress)
    shape = read_shape(checkpoint)
    return checkpoint, shape, resolve_parsers(resolve_dtypes(topology, checkpoint, shape), checkpoint)


def find_draft(
    topology: Topology, target: Checkpoint, shape: ModelShape, progress: Progress | None = None
) -> DraftCheckpoint | None:
    """Files and shape of the model, or the head, that drafts for the target, if one does. Raises ConfigError."""
    section = topology.speculative
    if section is None or section.method not in MODEL_METHODS or (section.method != "mtp" and not section.model):
        return None
    if section.method in HEAD_METHODS:
        return find_head(section.method, section.model, target, shape, progress)
    assert section.model is not None
    checkpoint = resolve_checkpoint(section.model, progress=progress)
    return DraftCheckpoint(checkpoint, read_shape(checkpoint))


def check_draft(topology: Topology, shape: ModelShape, draft: DraftCheckpoint | None) -> list[Problem]:
    """Of a model that drafts for one of `shape`."""
    return [] if draft is None else check_draft_model(topology, shape, draft.shape)


def check_load(topology: Topology, checkpoint: Checkpoint) -> list[Problem]:
    """The loader follows from the files: one that was named must be the one for them."""
    load = topology.model.load
    if load in ("auto", "dummy", checkpoint.format):
        return []
    got = f'load = "{load}", but {checkpoint.path} is loaded as {checkpoint.format}'
    advice = "leave load out, or name a model of that format (of a directory with both: the .gguf file)"
    return [Problem(("model", "load"), got, "", advice)]


def plan_launch(
    topology: Topology, checkpoint: Checkpoint, shape: ModelShape, draft: DraftCheckpoint | None = None
) -> Launch:
    """For a topology without problems, dtypes resolved. Raises NotEnoughMemory."""
    device = worker_process(topology).device
    available_bytes = free_device_bytes(device) if has_gpu(topology) else _available_bytes()
    arithmetic, beside = _arithmetic(topology, checkpoint, shape), None
    if draft is not None:
        is_head = draft.num_head_elements is not None
        of_draft = arithmetic if is_head else _arithmetic(topology, draft.checkpoint, draft.shape)
        beside = DraftSizes(draft.shape, of_draft, draft.num_head_elements)
    ledger = plan_memory(topology, shape, available_bytes, arithmetic, beside)
    return Launch(topology, checkpoint, shape, max_model_len_of(topology, shape), ledger, draft)


def _arithmetic(topology: Topology, checkpoint: Checkpoint, shape: ModelShape) -> Arithmetic:
    """How a model of the topology's dtype is held and computed."""
    packed_bits = None
    if compiled_obstacle(topology, shape) is None:
        packed_bits = held_bits(topology.model.dtype, shape, stored_types(checkpoint, shape))
    return arithmetic_of(topology, cpu_flags(), packed_bits)


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
