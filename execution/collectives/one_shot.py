"""Ranks on GPUs that reach each other's memory: small sums in one launch, the rest by another collective."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.gpu.one_shot_all_reduce import BUFFER_BYTES, Peers, one_shot_all_reduce
from ...models.collective import Collective
from .peer_memory import PeerMemory

MAX_BYTES = 512 << 10
"""Of a sum in one launch, where nobody says otherwise."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class OneShotCollective:
    """`models.collective.Collective` of CUDA tensors. Sums of up to `max_bytes` are added in the order of the ranks; a
    rank whose peer has died waits for it for ever, as with NCCL."""

    def __init__(self, inner: Collective, group: Collective, device: torch.device, max_bytes: int = MAX_BYTES) -> None:
        """inner: what does the rest; group: the same ranks by way of the host. Raises DeviceFault where their GPUs do
        not reach each other."""
        self.rank, self.size = group.rank, group.size
        self._inner, self._max_bytes = inner, max_bytes
        self._memory = PeerMemory(group, device, BUFFER_BYTES)
        self._peers = Peers(self._memory.bases, group.rank)

    def all_reduce(self, x: Tensor) -> Tensor:
        if x.nbytes > self._max_bytes or x.dtype not in _DTYPES:
            return self._inner.all_reduce(x)
        x = x.contiguous()
        one_shot_all_reduce(x, self._peers)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return self._inner.all_gather(x)

    def gather(self, x: Tensor) -> Tensor | None:
        return self._inner.gather(x)

    def broadcast(self, x: Tensor) -> Tensor:
        return self._inner.broadcast(x)

    def close(self) -> None:
        """When all ranks have done what they launched. Twice is once."""
        self._memory.close()
