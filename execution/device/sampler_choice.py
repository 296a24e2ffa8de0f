"""Which sampler a device's steps have."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..input_batch import InputBatch
from .step_sampler import ComputeLogits, StepSampler, TorchStepSampler

MakeSampler = Callable[[ComputeLogits, InputBatch, int, int, torch.device], StepSampler]
"""(compute_logits, batch, vocab_size, max_places, device); places: rows of a step, padding included."""


def sampler_for(device: torch.device) -> MakeSampler:
    """The fastest there."""
    if device.type != "cuda":
        return TorchStepSampler
    from .kernel_sampler import KernelStepSampler

    return KernelStepSampler
