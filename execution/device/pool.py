"""Keys and values on the device, as the operations of a decoder take them."""

from __future__ import annotations

import torch

from ...checkpoints.shape import ModelShape
from ...kernels.device_operations import PagedCache
from ..kv_tensors import KVTensors


class DevicePool:
    """`num_blocks` blocks of all layers, and one more that belongs to no row: padding may write there."""

    def __init__(
        self, shape: ModelShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tensors = KVTensors(shape, num_blocks + 1, block_size, dtype, device)
        self.tensors.tensor.zero_()  # a library may multiply what nobody wrote by the weight 0: it must not be NaN
        self.caches = tuple(
            PagedCache(keys, values, block_size)
            for keys, values in zip(self.tensors.keys, self.tensors.values, strict=True)
        )
