"""The paged KV cache: one tensor, allocated once, touched page by page as blocks come into use."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape


class KVTensors:
    """Keys and values of all layers: [num_layers, 2, num_blocks, block_size, kv_heads, head_dim], contiguous.

    The memory is not initialised: a slot is read only after it was written. `keys[layer]` and `values[layer]` are its
    views [num_slots, kv_heads, head_dim], where slot = block_id * block_size + offset.
    """

    def __init__(
        self, shape: ModelShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks, self.block_size, self.num_slots = num_blocks, block_size, num_blocks * block_size
        self.shape, self.dtype, self.device = shape, dtype, device
        self.tensor = torch.empty(
            (shape.num_layers, 2, num_blocks, block_size, shape.num_kv_heads, shape.head_dim),
            dtype=dtype,
            device=device,
        )
        # Views are made once: slicing costs microseconds, twice a layer.
        flat = self.tensor.view(shape.num_layers, 2, self.num_slots, shape.num_kv_heads, shape.head_dim)
        self.keys: tuple[Tensor, ...] = tuple(flat[layer, 0] for layer in range(shape.num_layers))
        self.values: tuple[Tensor, ...] = tuple(flat[layer, 1] for layer in range(shape.num_layers))

    def num_bytes(self) -> int:
        """Bytes of the whole cache when every block has been touched."""
        return self.tensor.numel() * self.tensor.element_size()
