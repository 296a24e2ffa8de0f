"""Counts of calls and bytes, by step."""

from __future__ import annotations

import torch

from callboard.execution.collectives.counted import CollectiveCounts, CountedCollective
from callboard.execution.collectives.one_rank import OneRank
from callboard.tests.execution.collectives.ranks import run_ranks


def test_calls_and_bytes_are_counted_by_kind_and_step():
    group = CountedCollective(OneRank())
    group.all_reduce(torch.ones(3, 5))
    group.all_reduce(torch.ones(2, dtype=torch.bfloat16))
    group.gather(torch.ones(7))
    first = group.take_step()
    group.broadcast(torch.ones(1, dtype=torch.int32))
    group.all_gather(torch.ones(2))
    assert first == CollectiveCounts(all_reduces=2, all_reduce_bytes=64, gathers=1, gather_bytes=28)
    second = CollectiveCounts(broadcasts=1, broadcast_bytes=4, all_gathers=1, all_gather_bytes=8)
    assert group.take_step() == second
    assert group.take_step() == CollectiveCounts()
    assert group.statistics() == first + second


def test_a_step_of_the_reference_model_exchanges_what_the_rules_say():
    """160 all-reduces a step for 80 layers; about 2.6 MB a token-step at hidden 8,192 (rules.md 8)."""
    group = CountedCollective(OneRank())
    for _ in range(80):
        group.all_reduce(torch.empty(1, 8192, dtype=torch.bfloat16))
        group.all_reduce(torch.empty(1, 8192, dtype=torch.bfloat16))
    counts = group.take_step()
    assert counts.all_reduces == 160
    assert round(counts.all_reduce_bytes / 1e6, 1) == 2.6


def test_what_a_graph_repeats_is_added():
    group = CountedCollective(OneRank())
    before = group.statistics()
    group.all_reduce(torch.ones(4))
    of_graph = group.statistics() - before
    group.add(CollectiveCounts() - of_graph)  # it was only recorded
    assert group.take_step() == CollectiveCounts()
    group.add(of_graph)
    group.add(of_graph)
    assert group.take_step() == CollectiveCounts(all_reduces=2, all_reduce_bytes=32)


def test_results_pass_through():
    def work(group):
        counted = CountedCollective(group)
        x = torch.tensor([float(counted.rank)])
        return [counted.all_reduce(x.clone()), counted.all_gather(x), counted.gather(x), counted.broadcast(x.clone())]

    for rank, (total, everybodys, gathered, sent) in enumerate(run_ranks(2, work)):
        assert total.tolist() == [1.0] and everybodys.tolist() == [[0.0], [1.0]] and sent.tolist() == [0.0]
        assert (gathered is None) == (rank == 1)


def test_one_rank_has_everything():
    x = torch.arange(6).view(2, 3)
    group = OneRank()
    assert torch.equal(group.all_gather(x), x[None]) and torch.equal(group.gather(x), x[None])
    assert group.all_reduce(x) is x and group.broadcast(x) is x
