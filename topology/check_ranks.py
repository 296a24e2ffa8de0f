"""The rules about the ranks of a worker."""

from __future__ import annotations

from ..checkpoints.shape import ModelShape
from ..checkpoints.sharding import Sharding, obstacle
from ..checkpoints.weight_formats import PACKED_DTYPES
from .decode import show_value
from .plan import num_ranks_of
from .problem import NOT_YET, Problem
from .schema import NULL_DEVICE, ProcessSection, Topology

_FIELDS = ("tensor_parallel", "pipeline_parallel")


def check_ranks(
    topology: Topology,
    process: ProcessSection,
    kinds: list[str],
    path: tuple[str, str],
    shape: ModelShape | None,
    problems: list[Problem],
) -> None:
    """Append what is wrong with a process's ranks. kinds: of its actors."""
    if num_ranks_of(process) == 1:
        return
    name = next(name for name in _FIELDS if getattr(process, name) > 1)
    got, field = f"{name} = {getattr(process, name)}", (*path, name)
    if "worker" not in kinds:
        advice = "move it there or leave it out"
        problems.append(Problem(field, got, "only in the worker's process", advice, ((*path, "actors"),)))
        return
    if set(kinds) > {"worker"}:
        allowed = "a process of its own for a worker of several ranks, each of which is a process"
        problems.append(Problem(field, got, allowed, "move the other actors", ((*path, "actors"),)))
        return
    if process.device == NULL_DEVICE:
        allowed = "1 on the null device, which has nothing to share"
        problems.append(Problem(field, got, allowed, "leave it out", ((*path, "device"),)))
    elif topology.model.dtype in PACKED_DTYPES:
        allowed = f"1 with dtype = {show_value(topology.model.dtype)}, which is computed by one rank"
        problems.append(
            Problem(field, got, allowed, 'set [model] dtype = "float32" or "bfloat16"', (("model", "dtype"),))
        )
    elif shape is not None and process.tensor_parallel > 1:
        _check_sharding(process.tensor_parallel, shape, (*path, "tensor_parallel"), problems)
    if process.pipeline_parallel > 1 and process.device != NULL_DEVICE:
        _check_stages(topology, process, (*path, "pipeline_parallel"), shape, problems)


def _check_stages(
    topology: Topology,
    process: ProcessSection,
    path: tuple[str, ...],
    shape: ModelShape | None,
    problems: list[Problem],
) -> None:
    got, depth = f"pipeline_parallel = {process.pipeline_parallel}", topology.scheduler.pipeline_depth
    if shape is not None and process.pipeline_parallel > shape.num_layers:
        problems.append(Problem(path, got, f"at most {shape.num_layers}, the model's layers", "lower it"))
    elif process.pipeline_parallel > depth:
        allowed = f"at most pipeline_depth = {depth}: each stage has a step in flight"
        depends_on = (("scheduler", "pipeline_depth"),)
        problems.append(Problem(path, got, allowed, "raise [scheduler] pipeline_depth, or lower it", depends_on))
    if process.device.startswith("cuda"):
        allowed = f"1 on device {process.device}; more is {NOT_YET}"
        problems.append(Problem(path, got, allowed, "use tensor_parallel", ((*path[:-1], "device"),)))
    if topology.speculative is not None:
        allowed = f"1 beside [speculative]; more is {NOT_YET}"
        problems.append(Problem(path, got, allowed, "leave [speculative] out", (("speculative",),)))


def _check_sharding(size: int, shape: ModelShape, path: tuple[str, ...], problems: list[Problem]) -> None:
    got = f"tensor_parallel = {size}"
    if (why_not := obstacle(shape, size)) is not None:
        allowed = f"{_even_sizes(shape)}; {why_not}"
        problems.append(Problem(path, got, allowed, "lower it"))
    elif filled := describe_filling(shape, size):
        allowed = f"{_even_sizes(shape)}; with {size}, {filled}"
        problems.append(Problem(path, got, allowed, "lower it, or let ranks compute with zeros, too", is_warning=True))


def describe_filling(shape: ModelShape, size: int) -> str:
    """What is filled up with zeros: `9 heads become 12, 3 KV heads 4`; empty if nothing is."""
    sharding = Sharding(shape, size)
    copies = max(1, size // shape.num_kv_heads)
    pairs = (
        ("heads", shape.num_heads, sharding.num_heads),
        ("KV heads", shape.num_kv_heads, -(-sharding.num_kv_heads // copies)),
        ("units of the MLP", shape.intermediate_size, sharding.intermediate_size),
    )
    filled = [f"{real:,} {what} become {held:,}" for what, real, held in pairs if held > real]
    return ", ".join(filled)


def _even_sizes(shape: ModelShape) -> str:
    """Of groups in which no rank has zero heads or units."""
    even = []
    for size in range(1, min(shape.num_heads, shape.intermediate_size, shape.vocab_size) + 1):
        sharding = Sharding(shape, size)
        if (sharding.num_heads, sharding.intermediate_size) == (shape.num_heads, shape.intermediate_size):
            even.append(f"{size}")
    return f"{', '.join(even)}, which share out {shape.num_heads} heads and {shape.num_kv_heads} KV heads"
