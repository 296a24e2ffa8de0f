"""A decoder's weights as a device's operations take them: plain tensors, stacked, in the model's dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..checkpoints.shape import Checkpoint, ModelShape
from ..checkpoints.sharding import Sharding
from ..kernels.device_operations import Matrix, Operations
from .collective import Collective
from .decoder_weights import gather_weights
from .device_decoder import DeviceDecoder
from .load import read_pieces, read_shares
from .registry import model_family
from .tensor_form import PlainTensors
from .tensor_parallel import TensorParallel


class DeviceForm(PlainTensors):
    """The matrices plain, too."""

    def hold_matrix(self, matrix: Tensor, bias: Tensor | None = None) -> Matrix:
        return Matrix(matrix, bias)

    def tie_head(self, embedding: Tensor) -> Matrix:
        return Matrix(embedding)


def load_device_decoder(
    checkpoint: Checkpoint,
    shape: ModelShape,
    dtype: torch.dtype,
    device: torch.device,
    operations: Operations,
    max_model_len: int,
    progress: Callable[[int, int], None] | None = None,
    collective: Collective | None = None,
) -> DeviceDecoder:
    """As `load_model`: pieces of a few MiB go to the device one after the other, so that the host never holds more and
    the device no second copy. operations: for `local_shape` of the ranks, if there are several."""
    family = model_family(shape.architecture)
    expected, parallel = family.tensor_shapes(shape), None
    if collective is None:
        pieces = read_pieces(checkpoint, shape, expected, progress, quantized=False)
    else:
        sharding = Sharding(shape, collective.size)
        pieces = read_shares(checkpoint, sharding, collective.rank, expected, progress)
        parallel = TensorParallel(sharding, collective, device)
        shape = sharding.local_shape
    weights = gather_weights(shape, family.stacks, family.norm_offset, pieces, DeviceForm(dtype, device))
    return DeviceDecoder(
        shape,
        weights,
        operations,
        max_model_len,
        activation=family.activation,
        is_embedding_scaled=family.is_embedding_scaled,
        parallel=parallel,
    )
