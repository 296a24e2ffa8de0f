"""The start of a runner on a device: the largest step is run once, and the KV pool gets what memory that leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import torch

from ...checkpoints.shape import ModelShape
from ...errors import NotEnoughMemory, RankFailed
from ...kernels.device_operations import Operations, TorchOperations
from ...models.device_decoder import DeviceDecoder
from ...speculative.proposer import Proposer
from ...topology.device import DEVICE_POOL_SHARE
from ...topology.render import render_bytes
from ...topology.schema import KVCacheSection
from ..token_masks import MaskSource
from .graphs import Mode
from .limits import RunnerLimits
from .runner import DeviceRunner
from .seam import Device
from .start_plans import blocks_of_largest_step

if TYPE_CHECKING:
    from ...kernels.gpu.attention_backend import AttentionName


class PoolPlan(msgspec.Struct, frozen=True):
    """Where a device's memory goes, as it was measured; in bytes."""

    weight_bytes: int
    step_bytes: int
    """The largest step beside weights and KV, and the device's context."""
    graph_bytes: int
    """All graphs, as the largest says."""
    free_bytes: int
    """Left for the pool."""
    block_bytes: int
    num_blocks: int

    def __str__(self) -> str:
        return (
            f"weights {render_bytes(self.weight_bytes)} + largest step {render_bytes(self.step_bytes)} + graphs "
            f"{render_bytes(self.graph_bytes)}, left for the KV pool {render_bytes(max(self.free_bytes, 0))}, a block "
            f"of it takes {render_bytes(self.block_bytes)}"
        )


def make_operations(
    shape: ModelShape,
    max_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    attention: AttentionName = "triton",
) -> Operations:
    """The fastest that there are on a device, for steps of up to so many tokens. Raises ConfigError if who is to
    compute attention is not installed."""
    if device.type != "cuda":
        return TorchOperations()
    from ...kernels.gpu.operations import GpuOperations, LayerSizes

    sizes = LayerSizes(shape.hidden_size, shape.intermediate_size, shape.num_heads, shape.num_kv_heads, shape.head_dim)
    return GpuOperations(sizes, max_tokens, dtype, device, attention)


def start_runner(
    load: Callable[[], DeviceDecoder],
    device: Device,
    limits: RunnerLimits,
    section: KVCacheSection,
    kv_dtype: torch.dtype,
    graphs: Mode,
    num_blocks: int,
    masks: MaskSource | None = None,
    proposer: Proposer | None = None,
    agree: Callable[[int], int] = lambda num_blocks: num_blocks,
) -> tuple[DeviceRunner, PoolPlan]:
    """Load, measure, make the pool. num_blocks: of the engine that the rank comes back to; 0: the rank is its first,
    and decides; masks: of constrained rows; proposer: of drafts; agree: blocks that this rank can have -> those that
    all ranks have. Raises NotEnoughMemory with what was measured until then."""
    free_at_first = device.free_bytes()
    try:
        decoder = load()
        weight_bytes = free_at_first - device.free_bytes()

        def make(blocks: int) -> DeviceRunner:
            return DeviceRunner(
                decoder, device, limits, num_blocks=blocks, block_size=section.block_size, kv_dtype=kv_dtype,
                graphs=graphs, masks=masks, proposer=proposer,
            )  # fmt: skip

        plan = _measure(make, device, limits, section, weight_bytes, free_at_first)
        plan = msgspec.structs.replace(plan, num_blocks=num_blocks or agree(_pool_blocks(plan, section)))
        _check(plan, limits, section)
        return make(plan.num_blocks), plan
    except (torch.OutOfMemoryError, RankFailed) as error:
        if isinstance(error, RankFailed) and not isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
        raise NotEnoughMemory(
            f"the model and its largest step do not fit: {render_bytes(free_at_first)} of the device were free at the "
            f"start, {render_bytes(device.free_bytes())} are now; {error}",
            advice="use a smaller model, or lower [scheduler] max_num_batched_tokens or max_num_seqs, or end what else "
            "uses the device",
        ) from error


def _measure(
    make: Callable[[int], DeviceRunner],
    device: Device,
    limits: RunnerLimits,
    section: KVCacheSection,
    weight_bytes: int,
    free_at_first: int,
) -> PoolPlan:
    probe_blocks = blocks_of_largest_step(limits, section.block_size)
    probe = make(probe_blocks)
    probe.run_largest_step()
    free_behind = device.free_bytes()
    probe.record_largest()
    block_bytes = probe.pool.tensors.num_bytes() // (probe_blocks + 1)
    probe_bytes = (probe_blocks + 1) * block_bytes
    num_graphs = 2 * limits.num_sizes if probe.graphs.num_graphs else 0
    graph_bytes = probe.graphs.num_bytes // max(1, probe.graphs.num_graphs) * num_graphs
    step_bytes = free_at_first - free_behind - weight_bytes - probe_bytes
    free_bytes = free_at_first - weight_bytes - step_bytes - graph_bytes
    del probe
    device.release_unused()
    return PoolPlan(weight_bytes, step_bytes, graph_bytes, free_bytes, block_bytes, 0)


def _pool_blocks(plan: PoolPlan, section: KVCacheSection) -> int:
    """As the topology wants it."""
    if section.num_blocks is not None:
        return section.num_blocks
    if section.memory_bytes is not None:
        return section.memory_bytes // plan.block_bytes
    share = DEVICE_POOL_SHARE if section.memory_share is None else section.memory_share
    return max(int(plan.free_bytes * share) // plan.block_bytes - 1, 0)  # one block is for padding


def _check(plan: PoolPlan, limits: RunnerLimits, section: KVCacheSection) -> None:
    request_blocks = -(-limits.max_model_len // section.block_size)
    fitting = max(plan.free_bytes // plan.block_bytes - 1, 0)
    if plan.num_blocks > fitting:
        raise NotEnoughMemory(
            f"a KV pool of {plan.num_blocks:,} blocks does not fit: {plan}",
            advice=f"lower [kv_cache] num_blocks or memory_bytes to {fitting:,} blocks, or leave it out",
        )
    if plan.num_blocks < request_blocks:
        raise NotEnoughMemory(
            f"the KV pool has {plan.num_blocks:,} blocks, one request of max_model_len {limits.max_model_len:,} needs "
            f"{request_blocks:,}: {plan}",
            advice=f"lower [model] max_model_len to {plan.num_blocks * section.block_size:,} or less, or lower "
            "[scheduler] max_num_batched_tokens",
        )
