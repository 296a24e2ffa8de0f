"""Where a decoder stands among those that share a model: the ranks of its layers, the stages before and behind it."""

from __future__ import annotations

from typing import NamedTuple

from ..checkpoints.shape import ModelShape
from ..checkpoints.stages import Stage
from .tensor_parallel import TensorParallel


class Place(NamedTuple):
    """Of one rank."""

    shape: ModelShape
    """Of the whole model."""
    parallel: TensorParallel | None
    """The ranks that share each of its layers; None: it has them alone."""
    stage: Stage | None
    """None: it has all layers."""
