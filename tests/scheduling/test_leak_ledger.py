"""The ledger of leaks over a real pool, with leaks planted: each is named by owner, step and event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from callboard.kv_cache.block_pool import BlockPool
from callboard.scheduling.leak_ledger import Leak, LeakLedger
from callboard.scheduling.request import Request

NUM_BLOCKS = 24
NUM_ROWS = 8


@dataclass(eq=False)
class Holder:
    """What the ledger reads of a request."""

    key: tuple[str, int]
    run: int | None
    row: int | None
    block_ids: list[int] = field(default_factory=list)
    taken: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Block -> (step, event)."""


def as_request(holder: Holder) -> Request:
    return cast(Request, holder)


class LeakMachine(RuleBasedStateMachine):
    """Requests take, share and give back blocks; some lose one. The ledger names exactly what was lost, and by whom."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, 4, prefix_caching=True)
        self.ledger = LeakLedger(NUM_BLOCKS, NUM_ROWS)
        self.live: list[Holder] = []
        self.cached: set[int] = set()
        self.num_runs = 0
        self.step = 0
        self.lost: list[tuple[int, Holder]] = []
        self.how: dict[int, str] = {}

    @rule()
    def a_step_is_planned(self) -> None:
        self.step += 1

    @precondition(lambda self: len(self.live) < NUM_ROWS)
    @rule(data=st.data(), num_blocks=st.integers(1, 3))
    def admit(self, data: st.DataObject, num_blocks: int) -> None:
        usable = sorted({block for holder in self.live for block in holder.block_ids} | self.cached)
        shared = data.draw(st.lists(st.sampled_from(usable), max_size=3, unique=True)) if usable else []
        self.pool.share(shared)
        num_blocks = min(num_blocks, self.pool.num_free)
        self.num_runs += 1
        blocks = [*shared, *self.pool.allocate(num_blocks)]
        holder = Holder((f"r{self.num_runs}", 0), self.num_runs, len(self.live), blocks)
        step = self.step
        holder.taken = {block: (step, "shared_prefix" if block in shared else "admission") for block in blocks}
        self.cached -= set(blocks)
        self.live.append(holder)
        self.ledger.admit(as_request(holder), len(shared), step)

    @precondition(lambda self: self.live and self.pool.num_free)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        num_rows = min(len(self.live), self.pool.num_free)
        holders = data.draw(st.permutations(self.live))[:num_rows]
        blocks = self.pool.allocate(num_rows)
        self.cached -= set(blocks)
        runs = np.array([holder.run for holder in holders], np.int64)
        drafts = [data.draw(st.booleans()) for _ in blocks]
        has_drafts = np.array(drafts) if any(drafts) else None
        self.ledger.grow(blocks, runs, np.ones(num_rows, np.int32), has_drafts, self.step)
        for holder, block, is_for_drafts in zip(holders, blocks, drafts, strict=True):
            holder.block_ids.append(block)
            holder.taken[block] = (self.step, "drafts" if is_for_drafts else "growth")

    @precondition(lambda self: self.live)
    @rule(data=st.data(), how=st.sampled_from(("aborted", "preempted (blocks)", "length_capped")))
    def leave(self, data: st.DataObject, how: str) -> None:
        holder = data.draw(st.sampled_from(self.live))
        self.live.remove(holder)
        self.ledger.leave(as_request(holder), how)
        self.how[cast(int, holder.run)] = how
        self.pool.free(holder.block_ids)
        self.cached |= {block for block in holder.block_ids if self.pool.count_users([block], 0)}

    @precondition(lambda self: any(holder.block_ids for holder in self.live))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A block falls out of its owner's table: nobody will give it back."""
        holder = data.draw(st.sampled_from([holder for holder in self.live if holder.block_ids]))
        block = data.draw(st.sampled_from(holder.block_ids))
        holder.block_ids.remove(block)
        self.lost.append((block, holder))

    @rule()
    def check(self) -> None:
        lost = self.pool.check_integrity(holder.block_ids for holder in self.live)
        leaks = self.ledger.name(lost, [], map(as_request, self.live), {})
        planted = [
            Leak("block", block, holder.key, holder.run, *holder.taken[block], self.how.get(cast(int, holder.run), ""))
            for block, holder in self.lost
        ]
        order = lambda leak: (leak.unit, leak.run)  # noqa: E731
        assert sorted(leaks, key=order) == sorted(planted, key=order)
        self.cached |= {block for block in lost if self.pool.count_users([block], 0)}
        self.lost.clear()

    @invariant()
    def nothing_is_free_and_used(self) -> None:
        assert all(self.pool.count_users([block], 0) for block in self.cached)

    def teardown(self) -> None:
        self.check()


LeakMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestLeaks = LeakMachine.TestCase


def admitted(
    ledger: LeakLedger, name: str, run: int, row: int, blocks: list[int], num_shared: int = 0, step: int = 0
) -> Holder:
    holder = Holder((name, 0), run, row, blocks)
    ledger.admit(as_request(holder), num_shared, step)
    return holder


def test_a_block_that_the_pool_was_not_given_back_is_named_although_its_holder_left_it() -> None:
    ledger = LeakLedger(8, 2)
    holder = admitted(ledger, "a", 1, 0, [4, 5], step=3)
    ledger.leave(as_request(holder), "aborted")
    leaks = ledger.name([5], [], [], {})
    assert leaks == [Leak("block", 5, ("a", 0), 1, 3, "admission", "aborted")]
    assert ledger.name([5], [], [], {})[0].owner == ("a", 0)


def test_a_row_that_nobody_gave_back_is_named() -> None:
    ledger = LeakLedger(8, 2)
    admitted(ledger, "a", 1, 0, [], step=7)
    b = admitted(ledger, "b", 2, 1, [], step=7)
    ledger.leave(as_request(b), "stopped")
    assert ledger.name([], [1], [], {}) == [Leak("row", 1, ("b", 0), 2, 7, "admission", "stopped")]


def test_a_unit_that_was_never_taken_in_the_open_has_no_owner() -> None:
    ledger = LeakLedger(8, 2)
    assert ledger.name([3, 3], [], [], {}) == [Leak("block", 3, None, None, 0, "", "")] * 2


def test_blocks_of_a_transfer_are_named_by_the_request_that_they_were_for() -> None:
    ledger = LeakLedger(8, 2)
    waiting = Holder(("a", 1), None, None)
    ledger.load(0, waiting.key, [2, 3], 5)
    assert ledger.name([], [], [as_request(waiting)], {0: [2, 3]}) == []
    ledger.leave(as_request(waiting), "aborted")
    assert ledger.name([2], [], [], {}) == [Leak("block", 2, ("a", 1), None, 5, "transfer", "aborted")]


def test_loaded_blocks_of_a_request_that_has_a_row_are_its_runs() -> None:
    ledger = LeakLedger(8, 2)
    ledger.load(0, ("a", 0), [2, 3], 5)
    holder = Holder(("a", 0), 9, 1, [2, 3, 4])
    ledger.admit(as_request(holder), 2, 6)
    ledger.leave(as_request(holder), "stopped")
    assert [(leak.unit, leak.run, leak.event) for leak in ledger.name([3, 4], [], [], {})] == [
        (3, 9, "transfer"),
        (4, 9, "admission"),
    ]


def test_a_leak_that_was_told_is_not_told_again_when_the_next_holder_of_the_block_leaks_it_too() -> None:
    ledger = LeakLedger(8, 2)
    first = admitted(ledger, "first", 1, 0, [0])
    first.block_ids.remove(0)
    ledger.leave(as_request(first), "stopped")
    assert [leak.run for leak in ledger.name([0], [], [], {})] == [1]
    second = admitted(ledger, "second", 2, 0, [0], num_shared=1)
    second.block_ids.remove(0)
    ledger.leave(as_request(second), "aborted")
    (leak,) = ledger.name([0], [], [], {})
    assert (leak.owner, leak.event, leak.owner_ended) == (("second", 0), "shared_prefix", "aborted")


def test_many_sharers_of_a_block_that_gave_it_back_leave_nothing_behind() -> None:
    ledger = LeakLedger(8, 2)
    admitted(ledger, "first", 1, 0, [0])
    for run in range(2, 1000):
        sharer = admitted(ledger, f"r{run}", run, 1, [0], num_shared=1)
        ledger.leave(as_request(sharer), "stopped")
    assert len(ledger._blocks._shared[0]) < 20


def test_ended_runs_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.scheduling.ended_runs.MAX_RUNS", 100)
    ledger = LeakLedger(2, 2)
    for run in range(102):
        holder = admitted(ledger, f"r{run}", run, 0, [run % 2])
        ledger.leave(as_request(holder), "stopped")
    assert len(ledger._ended._runs) == 100
    assert [leak.owner for leak in ledger.name([0, 1], [], [], {})] == [("r100", 0), ("r101", 0)]
