"""The lines of heaps against a list that is sorted as a whole each time, and what a call of them touches."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.scheduling import cache_aware, fair, fcfs, priority
from callboard.scheduling.policy_views import Order
from callboard.scheduling.request import Request, RequestState
from callboard.scheduling.waiting_lines import HeapLines
from callboard.tests.scheduling.fake_request import fake_request, order_view, waiting_states

ORDERS = {"fcfs": fcfs.ORDER, "priority": priority.ORDER, "fair": fair.ORDER, "cache_aware": cache_aware.ORDER}


class SortedTwin:
    """The same in one list, which every question goes through."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.requests: list[Request] = []
        self.line_names: list[str] = []

    def add(self, request: Request) -> None:
        self.requests.append(request)
        if self.order.line_of(request) not in self.line_names:
            self.line_names.append(self.order.line_of(request))

    def remove(self, request: Request) -> None:
        self.requests.remove(request)
        line = self.order.line_of(request)
        if self.first(line) is None:
            self.line_names.remove(line)

    def first(self, line: str) -> Request | None:
        standing = [request for request in self.requests if self.order.line_of(request) == line]
        return min(standing, key=self.order.rank, default=None)


def check_same(lines: HeapLines, twin: SortedTwin) -> None:
    assert len(lines) == len(twin.requests)
    assert list(lines.lines()) == twin.line_names
    for line in [*"abc", ""]:
        assert lines.first(line) is twin.first(line)
    assert sorted(request.key for request in lines) == sorted(request.key for request in twin.requests)


moves = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "leave", "go", "return"]),
        st.integers(0, 1000),
        st.sampled_from("abc"),
        waiting_states,
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=40)
@given(moves=moves)
def test_lines_are_those_of_a_sorted_list(name: str, moves: list[tuple[str, int, str, RequestState]]) -> None:
    lines, twin = HeapLines(ORDERS[name]), SortedTwin(ORDERS[name])
    gone: list[Request] = []
    for order, (move, number, tenant, state) in enumerate(moves):
        if move == "come":
            came = fake_request(order, priority=number % 3, arrival_ns=number % 2, tenant=tenant, state=state)
            lines.add(came)
            twin.add(came)
        elif move == "return" and gone:
            back = gone.pop(number % len(gone))
            back.state = state
            lines.add(back)
            twin.add(back)
        elif move in ("leave", "go") and twin.requests:
            first = twin.first(twin.line_names[number % len(twin.line_names)])
            leaving = first if move == "go" and first is not None else twin.requests[number % len(twin.requests)]
            lines.remove(leaving)
            twin.remove(leaving)
            gone.append(leaving)
        check_same(lines, twin)


def test_line_and_rank_are_those_of_the_time_at_which_it_came() -> None:
    """A state that changes while it waits neither moves nor loses it."""
    lines = HeapLines(fcfs.ORDER)
    first, second = fake_request(1), fake_request(2)
    lines.add(first)
    lines.add(second)
    second.state = RequestState.PREEMPTED
    assert lines.first(fcfs.LINE) is first
    lines.remove(second)
    assert list(lines) == [first]
    lines.add(second)
    assert lines.first(fcfs.LINE) is second


def test_nobody_waits_twice() -> None:
    lines = HeapLines(fcfs.ORDER)
    lines.add(fake_request(1))
    with pytest.raises(AssertionError, match="waits already"):
        lines.add(fake_request(1))
    with pytest.raises(KeyError):
        lines.remove(fake_request(2))


def test_thousands_that_wait_and_leave_again_are_not_kept() -> None:
    """9 of 10 are aborted where they stand, behind one that is never admitted."""
    lines, draw = HeapLines(priority.ORDER), random.Random(0)
    lines.add(fake_request(0, priority=-9))
    waiting: list[Request] = []
    for order in range(1, 5001):
        waiting.append(fake_request(order, priority=draw.randint(-5, 5), arrival_ns=draw.randint(0, 9)))
        lines.add(waiting[-1])
        if len(waiting) > 100:
            lines.remove(waiting.pop(draw.randrange(100)))
    assert len(lines._lines[""]._heap) <= 300
    drained = []
    while (first := lines.first("")) is not None:
        drained.append(first)
        lines.remove(first)
    assert [request.rank for request in drained[1:]] == sorted(request.rank for request in waiting)


def test_one_that_leaves_and_returns_for_ever_is_kept_once() -> None:
    lines = HeapLines(priority.ORDER)
    lines.add(fake_request(0, priority=-1))
    restless = fake_request(1)
    for _ in range(1000):
        lines.add(restless)
        lines.remove(restless)
    assert len(lines._lines[""]._heap) <= 100


def test_a_line_that_empties_is_forgotten() -> None:
    lines = HeapLines(fair.ORDER)
    for order in range(1000):
        request = fake_request(order, tenant=f"tenant{order}")
        lines.add(request)
        lines.remove(request)
    assert not lines.lines() and not lines._lines and not lines._places


# What a call touches --------------------------------------------------------------------------------------------------


class CountedRank(tuple[int, int, int]):
    """Counts how often ranks are compared."""

    num_compared = 0

    def __lt__(self, other: object) -> bool:
        CountedRank.num_compared += 1
        return super().__lt__(other)  # type: ignore[operator]


def counted(order: Order) -> Order:
    return order._replace(rank=lambda request: CountedRank(order.rank(request)))


def comparisons_per_move(order: Order, num_waiting: int, tenant: Callable[[int], str]) -> float:
    """Of an add, a choice and a removal of the chosen one, with so many waiting."""
    lines, draw = HeapLines(counted(order)), random.Random(0)
    view = order_view(served_tokens={tenant(n): n for n in range(10)})
    num_moves, orders = 200, iter(range(10**6))

    def come() -> None:
        number = next(orders)
        lines.add(fake_request(number, priority=draw.randint(0, 9), tenant=tenant(number), queued_ns=number))

    for _ in range(num_waiting):
        come()
    CountedRank.num_compared = 0
    for _ in range(num_moves):
        come()
        chosen = order.choose(lines, view)
        assert chosen is not None
        lines.remove(chosen)
    return CountedRank.num_compared / num_moves


@pytest.mark.parametrize("name", ["fcfs", "priority", "fair"])
def test_a_choice_among_ten_thousand_compares_no_more_than_a_few_dozen(name: str) -> None:
    """A heap of n takes about log2(n) comparisons to add and twice that to remove: 13 and 27 at 10,000. Going through
    all would be 10,000."""
    few, many = (comparisons_per_move(ORDERS[name], n, lambda number: f"t{number % 10}") for n in (100, 10_000))
    assert many < 60
    assert many - few < 40
