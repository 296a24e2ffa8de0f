"""What a family of decoder-only models is: how its tensors are stacked, and where its forward pass in torch is.

Torch is imported by those who compute with it: a decoder that is compiled for the CPU takes the description alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..checkpoints.shape import ModelShape
from .decoder_weights import Stacks, gather_weights, tensor_shapes
from .parts import RowsOfPiece

if TYPE_CHECKING:
    import torch

    from .decoder import Forward
    from .place import Place
    from .protocol import CausalLM


@dataclass(frozen=True)
class Family:
    """How the models of a family are built: they name their tensors, then take them piece by piece."""

    find_forward: Callable[[], Forward]
    """Imports the family's forward pass."""
    stacks: Stacks
    norm_offset: float = 0.0
    """What norms add to the weights that are stored."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Of the gate."""
    is_embedding_scaled: bool = False
    """By sqrt(hidden_size)."""

    def tensor_shapes(self, shape: ModelShape) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor that the model is made of."""
        return tensor_shapes(shape)

    def planned_bytes(self, shape: ModelShape, dtype: torch.dtype, device: torch.device, max_model_len: int) -> int:
        """Bytes that the loaded model will hold on the device (its `num_weight_bytes`).

        The ledger, which knows no torch, estimates them (`topology.plan`); a test holds the two together.
        """
        from .linear import compute_dtype
        from .tensor_form import planned_weight_bytes

        table_elements = shape.num_rotary_tables * max_model_len * 2 * shape.head_dim
        return planned_weight_bytes(shape, dtype, device) + table_elements * compute_dtype(dtype, device).itemsize

    def from_pieces(
        self,
        shape: ModelShape,
        pieces: Iterator[tuple[str, int, RowsOfPiece]],
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
        place: Place | None = None,
    ) -> CausalLM:
        """Build it from (canonical name, first row, rows): each row of each tensor of `tensor_shapes` once.

        `place`: `shape` and the pieces are those of a rank."""
        from .decoder import Decoder
        from .tensor_form import TensorForm

        sizes = None if place is None or place.stage is None else place.stage.sizes_of(tensor_shapes(shape))
        weights = gather_weights(shape, self.stacks, self.norm_offset, pieces, TensorForm(dtype, device), sizes)
        return Decoder(shape, dtype, weights, self.find_forward(), max_model_len, place)
