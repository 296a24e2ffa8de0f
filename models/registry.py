"""Architecture names and the classes that implement them; the names are those of `checkpoints`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from ..errors import UnsupportedModel
from .llama import Llama
from .protocol import CausalLM


class ModelClass(Protocol):
    """How a model is built: it names its tensors, then takes them piece by piece."""

    @staticmethod
    def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor that the model is made of."""
        ...

    @staticmethod
    def planned_bytes(shape: ModelShape, dtype: torch.dtype, device: torch.device, max_model_len: int) -> int:
        """Bytes that the loaded model will hold on the device (its `num_weight_bytes`).

        The ledger, which knows no torch, estimates them (`topology.plan`); a test holds the two together.
        """
        ...

    @classmethod
    def from_pieces(
        cls,
        shape: ModelShape,
        pieces: Iterator[tuple[str, int, Tensor]],
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
    ) -> CausalLM:
        """Build it from (canonical name, first row, rows): each row of each tensor of `tensor_shapes` once."""
        ...


MODELS: dict[str, type[ModelClass]] = {"llama": Llama}


def model_class(architecture: str) -> type[ModelClass]:
    """The class of `architecture`; UnsupportedModel names it and what there is."""
    try:
        return MODELS[architecture]
    except KeyError:
        raise UnsupportedModel(
            f"architecture {architecture!r} is not supported (supported: {', '.join(sorted(MODELS))})",
            advice="choose a model of a supported architecture",
        ) from None
