"""What the ranks of a group on GPUs of one host exchange through."""

from __future__ import annotations

import torch

from ...errors import DeviceFault
from ...models.collective import Collective
from .nccl import NcclCollective
from .one_shot import OneShotCollective


def gpu_collective(group: Collective, device: torch.device) -> Collective:
    """`group`: the same ranks by way of the host. Small sums go in one launch where all GPUs reach each other's memory;
    all ranks find the same. Raises DeviceFault, StartFailed."""
    nccl = NcclCollective(group, device)
    try:
        return OneShotCollective(nccl, group, device)
    except DeviceFault:
        return nccl
