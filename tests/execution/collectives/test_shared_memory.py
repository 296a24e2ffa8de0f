"""Ranks that share memory: sums in their order, everybody's tensors, errors in place of waiting for ever.

Both kinds: that of the steps, in compiled code, and that of the start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import reduce
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import ConfigError, PeerDied, ProtocolViolation
from callboard.execution.collectives.polled import PolledCollective
from callboard.execution.collectives.shared_memory import SharedMemoryCollective
from callboard.kernels.cpu.rank_words import SLEEPING
from callboard.shm_queue.rank_region import RankRegion, RankRegionLayout, create_rank_region
from callboard.tests.execution.collectives.ranks import HostCollective, region, run_forks, run_ranks

CHILD = Path(__file__).with_name("rank_child.py")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (0, 1, 7, 63, 1023, 1024, 1025, 4096, 40_000)
"""Of elements: within a slot of 4,096 bytes, of two and more; over the limit of one meeting."""


def tensors(num_ranks: int, size: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Of magnitudes so far apart that the order of a sum shows."""
    draw = torch.Generator().manual_seed(seed)
    scales = 10.0 ** torch.randint(-3, 4, (num_ranks, size), generator=draw)
    return list((torch.randn(num_ranks, size, generator=draw) * scales).to(dtype))


both_kinds = pytest.mark.parametrize("kind", [SharedMemoryCollective, PolledCollective])


def sum_in_order(parts: list[torch.Tensor], kind: type[HostCollective] = SharedMemoryCollective) -> torch.Tensor:
    """In the steps bfloat16 is added in float32 and rounded once."""
    if parts[0].dtype == torch.bfloat16 and kind is SharedMemoryCollective:
        return reduce(torch.add, [part.float() for part in parts]).bfloat16()
    return reduce(torch.add, parts)


@both_kinds
@pytest.mark.parametrize("slot_bytes", [4096, 1 << 17])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_sums_are_those_in_the_order_of_the_ranks_to_the_bit(num_ranks, slot_bytes, kind):
    cases = [(size, dtype, tensors(num_ranks, size, dtype)) for size in SIZES for dtype in DTYPES]

    def work(group):
        return [group.all_reduce(parts[group.rank].clone()) for _, _, parts in cases]

    for sums in run_ranks(num_ranks, work, slot_bytes, kind):
        for ours, (size, dtype, parts) in zip(sums, cases, strict=True):
            assert torch.equal(ours, sum_in_order(parts, kind)), (size, dtype)


@both_kinds
def test_a_sum_is_in_the_tensor_itself(kind):
    def work(group):
        x = torch.ones(3, 5)
        return group.all_reduce(x) is x

    assert all(run_ranks(2, work, kind=kind))


@both_kinds
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_each_gets_what_is_its(num_ranks, kind):
    parts = [torch.arange(5000).view(50, 100) + 10_000 * rank for rank in range(num_ranks)]

    def work(group):
        x = parts[group.rank]
        return group.all_gather(x.clone()), group.gather(x.clone()), group.broadcast(x.clone())

    for rank, (everybodys, gathered, sent) in enumerate(run_ranks(num_ranks, work, kind=kind)):
        assert torch.equal(everybodys, torch.stack(parts))
        assert torch.equal(sent, parts[0])
        if rank == 0:
            assert gathered is not None and torch.equal(gathered, torch.stack(parts))
        else:
            assert gathered is None


KINDS = st.sampled_from(["all_reduce", "all_gather", "gather", "broadcast"])


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.lists(st.tuples(KINDS, st.sampled_from([1, 5, 1200, 9000])), min_size=1, max_size=12))
def test_any_sequence_of_calls(num_ranks, calls):
    """Beside a twin that has all tensors at hand."""
    inputs = [tensors(num_ranks, size, torch.float32, seed=index) for index, (_, size) in enumerate(calls)]

    def work(group):
        return [getattr(group, kind)(parts[group.rank].clone()) for (kind, _), parts in zip(calls, inputs, strict=True)]

    for rank, results in enumerate(run_ranks(num_ranks, work)):
        for result, (kind, _), parts in zip(results, calls, inputs, strict=True):
            expected = {
                "all_reduce": sum_in_order(parts),
                "all_gather": torch.stack(parts),
                "gather": torch.stack(parts) if rank == 0 else None,
                "broadcast": parts[0],
            }[kind]
            assert result is expected is None or torch.equal(result, expected)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_processes_meet_many_times(num_ranks):
    """Every round has other numbers, and one rank or another comes late: a slot that is read too early or written too
    early has a wrong one."""

    def work(group):
        for number in range(600):
            size = (1, 700, 12_000)[number % 3]
            if (number * 7 + group.rank) % 11 == 0:
                os.sched_yield()
            x = torch.full((size,), float(number * (group.rank + 1)))
            expected = float(number * num_ranks * (num_ranks + 1) // 2)
            assert (group.all_reduce(x) == expected).all()

    assert run_forks(num_ranks, work) == [0] * num_ranks


def test_ranks_that_call_for_different_things_are_told():
    def work(group):
        with pytest.raises(ProtocolViolation, match="different calls"):
            group.all_reduce(torch.ones(3)) if group.rank else group.all_reduce(torch.ones(4))

    run_ranks(2, work)


@pytest.fixture
def child():
    """Starts the other rank of two in a process; it waits to be killed."""
    children = []

    def start(layout, fd):
        command = [sys.executable, "-P", str(CHILD), str(fd), str(layout.num_ranks), str(layout.slot_bytes), "1"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE, env=environment)
        children.append(process)
        assert process.stdout.readline() == b"here\n"
        return process

    yield start
    for process in children:
        process.kill()
        process.wait()
        process.stdout.close()


def test_who_waits_for_a_rank_that_dies_is_told(child):
    with region(2) as (layout, fd):
        group = SharedMemoryCollective(layout, fd, 0)
        other = child(layout, fd)
        words = group._region.shared_words

        def kill_when_it_sleeps():
            while not words[SLEEPING]:
                os.sched_yield()
            other.kill()

        killer = threading.Thread(target=kill_when_it_sleeps)
        killer.start()
        with pytest.raises(PeerDied) as caught:
            group.all_reduce(torch.ones(3))
        killer.join()
        assert (caught.value.rank, caught.value.pid) == (1, other.pid)
        group.close()


@both_kinds
def test_who_comes_when_a_rank_is_dead_is_told(child, kind):
    with region(2) as (layout, fd):
        group = kind(layout, fd, 0)
        other = child(layout, fd)
        assert list(group._region.dead_ranks()) == []
        other.kill()
        other.wait()
        with pytest.raises(PeerDied):
            group.broadcast(torch.ones(3))
        group.close()


def test_a_rank_is_one_processs():
    with region(2) as (layout, fd):
        first = RankRegion(layout, fd, 1)
        with pytest.raises(ProtocolViolation, match="rank 1"):
            RankRegion(layout, fd, 1)
        first.close()
        first.close()
        RankRegion(layout, fd, 1).close()


@pytest.mark.parametrize(("num_ranks", "slot_bytes", "word"), [(0, 4096, "num_ranks"), (2, 100, "slot_bytes")])
def test_an_impossible_region_is_refused(num_ranks, slot_bytes, word):
    with pytest.raises(ConfigError, match=word):
        create_rank_region(RankRegionLayout("ranks", num_ranks, slot_bytes))


def test_a_region_of_another_size_is_refused():
    with region(2) as (_, fd), pytest.raises(ProtocolViolation, match="bytes"):
        RankRegion(RankRegionLayout("ranks", 3, 4096), fd, 0)
