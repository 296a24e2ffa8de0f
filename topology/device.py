"""What a step on a GPU holds beside weights and KV (execution/device): an estimate for the ledger before the start. The
worker measures it."""

from __future__ import annotations

from ..checkpoints.shape import ModelShape
from .activations import StepLimits
from .schema import Topology

MIB = 1 << 20
DEVICE_POOL_SHARE = 0.92
"""Of the memory that all else leaves free; the rest is for what libraries take later."""
_CONTEXT_BYTES = 700 * MIB
"""CUDA's context, kernels that are loaded, workspaces of libraries."""
_GRAPH_BYTES = 8 * MIB
"""Of one recorded step."""
_LOGIT_BYTES = 16
"""A logit in the model's dtype, in float32, and what sampling makes of it."""


def device_of_rank(device: str, rank: int) -> str:
    """Of a worker on `device`: its ranks are on this GPU and the following ones."""
    kind, _, first = device.partition(":")
    return f"{kind}:{int(first or 0) + rank}" if rank else device


def has_gpu(topology: Topology) -> bool:
    """Whether the worker is on a CUDA device."""
    return any(process.device.startswith("cuda") for process in topology.process)


def device_step_bytes(shape: ModelShape, limits: StepLimits, dtype_bytes: int) -> int:
    """Buffers of the largest step, logits of all rows, the context."""
    query = shape.num_heads * shape.head_dim
    a_token = 3 * shape.hidden_size + 3 * query + 2 * shape.num_kv_heads * shape.head_dim + 3 * shape.intermediate_size
    logits = limits.max_num_seqs * shape.vocab_size * _LOGIT_BYTES
    blocks = 8 * limits.max_num_seqs * -(-limits.max_model_len // limits.block_size)
    return limits.max_num_batched_tokens * a_token * dtype_bytes + logits + blocks + _CONTEXT_BYTES


def device_graph_bytes(topology: Topology) -> int:
    """Two recorded parts of a step for each of the buckets (execution/graph_buckets.py)."""
    if all(process.graphs == "off" for process in topology.process if process.device.startswith("cuda")):
        return 0
    max_num_seqs = topology.scheduler.max_num_seqs
    return 2 * (4 + min(max_num_seqs, 256) // 8 + max(max_num_seqs - 256, 0) // 16) * _GRAPH_BYTES
