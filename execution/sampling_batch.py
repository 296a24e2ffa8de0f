"""Parameters of a step's rows as the sampling functions in torch take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from ..kernels.sampling import SamplingBatch
from .input_batch import InputBatch, Int32s
from .prepare_inputs import StepInputs

Place = Callable[[np.ndarray[tuple[int, ...], np.dtype[np.generic]]], Tensor]
"""An array of the host -> the same beside the logits."""


def sampling_batch(batch: InputBatch, inputs: StepInputs, place: Place) -> SamplingBatch | None:
    """Of the rows that sample; None if all are greedy."""
    return parameters_of(batch, inputs.sample_rows, inputs.sample_positions, place)


def parameters_of(batch: InputBatch, rows: Int32s, positions: Int32s, place: Place) -> SamplingBatch | None:
    """For the tokens at `positions` of `rows`, int32 [k]; None if all are greedy."""
    arrays = batch.sampling
    temperature = arrays.temperature[rows]
    if not temperature.any():
        return None
    return SamplingBatch(
        temperature=place(temperature),
        top_k=place(arrays.top_k[rows]),
        top_p=place(arrays.top_p[rows]),
        min_p=place(arrays.min_p[rows]),
        seeds=place(arrays.seed[rows].view(np.int64)),
        indexes=place((positions - batch.index_origins[rows]).astype(np.int64)),
        choices=place(arrays.choice[rows]),
    )
