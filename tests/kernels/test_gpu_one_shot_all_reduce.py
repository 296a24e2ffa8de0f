"""A sum over ranks in one launch: in the interpreter, by processes with memory that they share."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from callboard.kernels.gpu import one_shot_all_reduce as module
from callboard.kernels.gpu.one_shot_all_reduce import (
    BUFFER_BYTES,
    MAX_RANKS,
    Peers,
    one_shot_all_reduce,
    one_shot_all_reduce_twin,
)
from callboard.tests.kernels.gpu import DEVICE, IS_INTERPRETED

CASES = [
    (torch.float32, 1),
    (torch.bfloat16, 1023),
    (torch.float32, 2049),
    (torch.float16, 3 * 4096 + 5),
    (torch.float32, 7 * 2048 + 1),
    (torch.bfloat16, 4097),
]
"""Of 1 to 8 slices; there are 3 programs."""


def parts_of(dtype: torch.dtype, size: int, num_ranks: int, seed: int) -> list[torch.Tensor]:
    """float32 of magnitudes so far apart that the order of a sum shows; of the others integers, whose sums are exact:
    the interpreter rounds in its own way."""
    draw = torch.Generator().manual_seed(seed)
    if dtype != torch.float32:
        return list(torch.randint(-32, 33, (num_ranks, size), generator=draw).to(dtype))
    scales = 10.0 ** torch.randint(-3, 4, (num_ranks, size), generator=draw)
    return list(torch.randn(num_ranks, size, generator=draw) * scales)


def sum_all(start: int, rank: int, num_ranks: int, cases: Iterable[tuple[torch.dtype, int]]) -> None:
    peers = Peers(torch.tensor([start + each * BUFFER_BYTES for each in range(num_ranks)]), rank)
    for seed, (dtype, size) in enumerate(cases):
        parts = parts_of(dtype, size, num_ranks, seed)
        x = parts[rank].clone()
        one_shot_all_reduce(x, peers)
        assert torch.equal(x, one_shot_all_reduce_twin(parts)), (dtype, size)


def run_forks(num_ranks: int, work: Callable[[int, int], None]) -> list[int]:
    """Statuses of processes that run work(address of all buffers, rank)."""
    memory = mmap.mmap(-1, num_ranks * BUFFER_BYTES)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    pids = []
    for rank in range(num_ranks):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        status = 1
        try:
            work(start, rank)
            status = 0
        finally:
            os._exit(status)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.skipif(not IS_INTERPRETED, reason="processes share memory of the host here")
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_all_ranks_have_the_sum_to_the_bit(num_ranks, monkeypatch):
    monkeypatch.setattr(module, "MAX_PROGRAMS", 3)
    assert run_forks(num_ranks, lambda start, rank: sum_all(start, rank, num_ranks, CASES)) == [0] * num_ranks


@pytest.mark.skipif(not IS_INTERPRETED, reason="processes share memory of the host here")
def test_what_a_late_rank_reads_has_not_been_written_over():
    """In each round but the last, rank 1 reads when rank 0 has come to the next one."""
    num_rounds = 6

    def work(start: int, rank: int) -> None:
        flag_of_rank_0 = ctypes.c_int32.from_address(start + BUFFER_BYTES)
        barriers = itertools.count(1)

        def wait_at_barrier(builder: object) -> None:
            round_of_read, is_first = divmod(next(barriers), 2)
            while rank and not is_first and round_of_read < num_rounds and flag_of_rank_0.value <= round_of_read:
                os.sched_yield()

        InterpreterBuilder.create_barrier = wait_at_barrier
        sum_all(start, rank, 2, [(torch.float32, 5)] * num_rounds)

    assert run_forks(2, work) == [0, 0]


def test_operands_that_do_not_fit_are_refused():
    peers = Peers(torch.zeros(MAX_RANKS + 1, dtype=torch.int64, device=DEVICE), 0)
    with pytest.raises(ValueError, match="at most"):
        one_shot_all_reduce(torch.zeros(4, device=DEVICE), peers)
    with pytest.raises(ValueError, match="contiguous"):
        one_shot_all_reduce(torch.zeros(4, 4, device=DEVICE).T, Peers(peers.bases[:1], 0))
