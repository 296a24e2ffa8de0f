"""What a launch depends on beside its shapes: the number of multiprocessors, and whether kernels may overlap."""

from __future__ import annotations

from functools import cache

import torch
import triton

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Kernels run in Triton's interpreter, on tensors of the CPU (TRITON_INTERPRET=1 before triton is imported)."""

_NUM_SMS_INTERPRETED = 4
"""So that splits over multiprocessors are met in tests, too."""


@cache
def num_sms(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    if device.type != "cuda":
        return _NUM_SMS_INTERPRETED
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def has_dependent_launch(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it ends (programmatic dependent launch: Hopper and later).

    A kernel started so calls `tl.extra.cuda.gdc_wait()`, in every program, before it reads what an earlier launch
    writes and before it writes anything: the wait ends when the launch before is over, and that one has waited in turn.
    Where kernels let the next one start before they wait themselves, several are on the GPU at once, so what is read
    before the wait (weights; lengths and block tables of a step) must have been written before some launch without
    dependence.
    Its launch names both: `kernel[grid](..., PDL=pdl, launch_pdl=pdl)`.
    """
    return not IS_INTERPRETED and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
