"""NCCL, called by its C names. What several GPUs do with it is checked by `callboard.bench.gpu_collectives`."""

from __future__ import annotations

import ctypes

import pytest
import torch

from callboard.errors import StartFailed
from callboard.execution.collectives import nccl_library
from callboard.execution.collectives.nccl import NcclCollective
from callboard.execution.collectives.one_rank import OneRank


def test_a_machine_without_it_is_told_what_to_install(monkeypatch):
    def load(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nccl_library, "find_spec", lambda name: None)
    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(StartFailed, match="libnccl") as caught:
        nccl_library.NcclLibrary()
    assert "nvidia-nccl-cu" in caught.value.advice


@pytest.mark.gpu
def test_one_rank_in_a_graph():
    device = torch.device("cuda", 0)
    group = NcclCollective(OneRank(), device)
    x, total = torch.zeros(2, 4096, device=device)

    def step():
        return group.all_gather(group.broadcast(group.sum_to(x * 2, total) + 1))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        everybodys = step()
    for number in range(5):
        x.fill_(number)
        graph.replay()
        assert (everybodys == 2 * number + 1).all() and everybodys.shape == (1, 4096)
    group.close()
    group.close()
