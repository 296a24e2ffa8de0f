"""A CUDA device: one stream for the work, one for copies in, one for copies out; graphs share one pool of memory."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

from .seam import Moment


class CudaMoment:
    """An event that is recorded in a stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def is_past(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()


class CudaDevice:
    """Made, and used, by the thread that runs the steps."""

    can_record = True

    def __init__(self, torch_device: torch.device) -> None:
        torch.cuda.set_device(torch_device.index or 0)
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._work = torch.cuda.current_stream()
        self._in = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._out = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def host_bytes(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Moment:
        return CudaMoment(self._work)

    def copy(self, target: Tensor, source: Tensor) -> Moment:
        self._out.wait_stream(self._work)
        return self._copy(target, source, self._out)

    def copy_in(self, target: Tensor, source: Tensor) -> Moment:
        return self._copy(target, source, self._in)

    def order_after(self, moment: Moment) -> None:
        assert isinstance(moment, CudaMoment)
        self._work.wait_event(moment.event)

    def graph_memory(self) -> object:
        return torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], None], memory: object) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):  # type: ignore[arg-type]
            run()
        return graph.replay

    def free_bytes(self) -> int:
        torch.cuda.synchronize(self.torch_device)
        return torch.cuda.mem_get_info(self.torch_device)[0]

    def release_unused(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def _copy(self, target: Tensor, source: Tensor, stream: torch.cuda.Stream) -> Moment:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return CudaMoment(stream)
