"""Ranks on GPUs that reach each other's memory: small sums in one launch, the rest by another collective."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.gpu.one_shot_all_reduce import BUFFER_BYTES, Peers, one_shot_all_reduce
from ...models.collective import Collective
from .peer_memory import PeerMemory

READ_BYTES = 2 << 20
"""A sum takes one launch, where nobody says otherwise, if a rank then reads no more than this of the others' memory.

Two H200s, 2026-11-30, microseconds by one launch and by NCCL 2.28.9 (`python -m callboard.bench.gpu_collectives
peers`): 8 kB 5.4 and 12.8, 512 kB 7.6 and 15.2, 1 MB 14.0 and 19.3, 2 MB 24.6 and 31.3, 4 MB 48.5 and 36.4."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class OneShotCollective:
    """`models.collective.Collective` of CUDA tensors. Small sums are added in the order of the ranks; a rank
    whose peer has died waits for it for ever, as with NCCL."""

    def __init__(
        self, inner: Collective, group: Collective, device: torch.device, max_bytes: int | None = None
    ) -> None:
        """inner: what does the rest; group: the same ranks by way of the host; max_bytes: of a sum in one launch; None:
        as `READ_BYTES` says. Raises DeviceFault where the GPUs do not reach each other."""
        self.rank, self.size = group.rank, group.size
        self._inner = inner
        self._max_bytes = READ_BYTES // max(self.size - 1, 1) if max_bytes is None else max_bytes
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
