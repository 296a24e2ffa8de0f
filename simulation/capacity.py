"""How many KV blocks a device has room for beside a model."""

from __future__ import annotations

from ..checkpoints.shape import ModelShape
from ..errors import NotEnoughMemory
from ..topology.arithmetic import Arithmetic
from ..topology.plan import block_bytes_of
from ..topology.render import render_bytes
from ..topology.weights import weight_bytes_of
from .devices import DeviceSpec

DEFAULT_KV_SHARE = 0.9


def weight_bytes(shape: ModelShape, max_model_len: int, dtype_bytes: int) -> int:
    """Of a model as a GPU holds it."""
    plain = Arithmetic(dtype_bytes, dtype_bytes, dtype_bytes, dtype_bytes, is_head_copied=False)
    return weight_bytes_of(shape, plain, max_model_len)


def kv_blocks(
    shape: ModelShape,
    device: DeviceSpec,
    *,
    max_model_len: int,
    block_size: int,
    dtype_bytes: int = 2,
    kv_dtype_bytes: int = 2,
    kv_share: float = DEFAULT_KV_SHARE,
) -> int:
    """Blocks in `kv_share` of the memory beside the weights; the rest is for activations. Raises NotEnoughMemory."""
    weights = weight_bytes(shape, max_model_len, dtype_bytes)
    block_bytes = block_bytes_of(shape, block_size, kv_dtype_bytes)
    num_blocks = int(max(0, device.memory_bytes - weights) * kv_share) // block_bytes
    if num_blocks < 1:
        raise NotEnoughMemory(
            f"{device.name} has {render_bytes(device.memory_bytes)}, the weights take {render_bytes(weights)}: "
            f"no block of {render_bytes(block_bytes)} fits into {kv_share:.0%} of the rest",
            advice="name a larger device, or set the pool's size with --num-blocks",
        )
    return num_blocks
