"""Ranks on GPUs, by NCCL: in the stream of the work, so that graphs can hold it."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.collective import Collective
from .nccl_library import ID_BYTES, SUM, NcclLibrary, dtype_of


class NcclCollective:
    """`models.collective.Collective` of CUDA tensors.

    A sum has the same bits on all ranks, for each element of it is made once and sent to all; in which order is NCCL's
    choice. A rank whose peer has died waits for ever: who knows of the death ends its process. Raises DeviceFault.
    """

    def __init__(self, group: Collective, device: torch.device) -> None:
        """`group`: the same ranks by way of the host, which exchange what this needs to begin."""
        self.rank, self.size = group.rank, group.size
        self._library = NcclLibrary()
        identity = self._library.new_id() if group.rank == 0 else bytes(ID_BYTES)
        sent = group.broadcast(torch.frombuffer(bytearray(identity), dtype=torch.uint8))
        with torch.cuda.device(device):
            self._group = self._library.join(bytes(sent.tolist()), self.rank, self.size)

    @property
    def version(self) -> str:
        return self._library.version()

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        return self.sum_to(x, x)

    def sum_to(self, x: Tensor, out: Tensor) -> Tensor:
        """The sum of x, in out; both contiguous."""
        self._call("ncclAllReduce", x.data_ptr(), out.data_ptr(), x.numel(), dtype_of(x), SUM)
        return out

    def all_gather(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = x.new_empty((self.size, *x.shape))
        self._call("ncclAllGather", x.data_ptr(), out.data_ptr(), x.numel(), dtype_of(x))
        return out

    def gather(self, x: Tensor) -> Tensor | None:
        x = x.contiguous()
        if self.rank:
            self._call("ncclSend", x.data_ptr(), x.numel(), dtype_of(x), 0)
            return None
        out = x.new_empty((self.size, *x.shape))
        self._library.call("ncclGroupStart")
        for rank in range(1, self.size):
            self._call("ncclRecv", out[rank].data_ptr(), x.numel(), dtype_of(x), rank)
        self._library.call("ncclGroupEnd")
        out[0].copy_(x)
        return out

    def broadcast(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._call("ncclBroadcast", x.data_ptr(), x.data_ptr(), x.numel(), dtype_of(x), 0)
        return x

    def close(self) -> None:
        """Leave the group; what was launched is done. Twice is once."""
        if self._group:
            self._library.call("ncclCommDestroy", self._group)
            self._group = 0

    def _call(self, name: str, *arguments: int) -> None:
        """In the current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        self._library.call(name, *arguments, self._group, stream)
