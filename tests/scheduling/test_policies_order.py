"""Who is admitted next: the orders against brute force over all who wait, and worked numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.scheduling import cache_aware, fair, fcfs, priority
from callboard.scheduling.policy_views import Order, OrderView
from callboard.scheduling.request import Request, RequestState
from callboard.scheduling.waiting_lines import HeapLines
from callboard.tests.scheduling.fake_request import fake_request, order_view, snapshot, waiting_requests

SECOND = 1_000_000_000
ORDERS = {"fcfs": fcfs.ORDER, "priority": priority.ORDER, "fair": fair.ORDER, "cache_aware": cache_aware.ORDER}


def lines_of(order: Order, requests: list[Request]) -> HeapLines:
    lines = HeapLines(order)
    for request in requests:
        lines.add(request)
    return lines


def chosen(order: Order, requests: list[Request], view: OrderView) -> Request | None:
    return order.choose(lines_of(order, requests), view)


def is_new(request: Request) -> bool:
    return request.state is not RequestState.PREEMPTED


# Brute force: the lowest of a key over everybody ----------------------------------------------------------------------


def fcfs_key(request: Request, _view: OrderView) -> tuple[object, ...]:
    return (is_new(request), request.rank[2])


def priority_key(request: Request, _view: OrderView) -> tuple[object, ...]:
    return request.rank


def fair_key(request: Request, view: OrderView) -> tuple[object, ...]:
    """Only of the heads of lines, see `brute_force`."""
    waited_s = (view.now_ns - request.queued_ns) // SECOND
    aging = min(view.aging_max_tokens, view.aging_tokens_per_s * waited_s)
    return (view.served_tokens[request.tenant] - aging, request.rank[2])


def brute_force(name: str, requests: list[Request], view: OrderView) -> Request | None:
    if name == "fair":
        lines = ([request for request in requests if request.tenant == tenant] for tenant in "abc")
        heads = [min(line, key=lambda r: fcfs_key(r, view)) for line in lines if line]
        return min(heads, key=lambda r: fair_key(r, view), default=None)
    if name == "cache_aware":
        preempted = [request for request in requests if not is_new(request)]
        if preempted:
            return min(preempted, key=lambda r: r.rank[2])
        by_hit = sorted(requests, key=lambda r: r.rank[2])
        by_hit.sort(key=view.num_cached_tokens, reverse=True)
        return by_hit[0] if by_hit else None
    key: Callable[[Request, OrderView], tuple[object, ...]] = priority_key if name == "priority" else fcfs_key
    return min(requests, key=lambda r: key(r, view), default=None)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=40)
@given(
    requests=waiting_requests(),
    served=st.fixed_dictionaries({tenant: st.integers(0, 3) for tenant in "abc"}),
    hits=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    rate=st.integers(0, 3),
)
def test_the_choice_is_that_of_brute_force_and_pure(
    name: str, requests: list[Request], served: dict[str, int], hits: list[int], rate: int
) -> None:
    view = order_view(
        now_ns=4 * SECOND,
        served_tokens=served,
        num_cached_tokens=lambda request: hits[request.rank[2]],
        aging_tokens_per_s=rate,
        aging_max_tokens=3 if name == "fair" else 100,
    )
    before = (snapshot(requests), dict(served))
    expected = brute_force(name, requests, view)
    lines = lines_of(ORDERS[name], requests)
    for _ in range(2):
        assert ORDERS[name].choose(lines, view) is expected
    assert chosen(ORDERS[name], requests[::-1], view) is expected, "the order of coming is in the rank"
    assert (snapshot(requests), dict(served)) == before


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=40)
@given(requests=waiting_requests())
def test_everybody_is_admitted_once(name: str, requests: list[Request]) -> None:
    view = order_view(served_tokens=dict.fromkeys("abc", 0))
    lines = lines_of(ORDERS[name], requests)
    admitted = []
    while (request := ORDERS[name].choose(lines, view)) is not None:
        admitted.append(request.key)
        lines.remove(request)
    assert sorted(admitted) == sorted(request.key for request in requests)


def test_only_priority_sorts_the_running() -> None:
    assert [name for name, order in ORDERS.items() if order.sorts_running] == ["priority"]


# Worked numbers -------------------------------------------------------------------------------------------------------


def test_fcfs_takes_the_preempted_first_and_of_them_the_one_that_came_first() -> None:
    requests = [
        fake_request(1),
        fake_request(2, state=RequestState.PREEMPTED),
        fake_request(3),
        fake_request(4, state=RequestState.PREEMPTED),
    ]
    lines = lines_of(fcfs.ORDER, requests[::-1])
    admitted = []
    while (request := fcfs.ORDER.choose(lines, order_view())) is not None:
        admitted.append(request.rank[2])
        lines.remove(request)
    assert admitted == [2, 4, 1, 3]


def test_priority_leaves_a_preempted_one_behind_a_more_urgent_one_that_came_later() -> None:
    preempted = fake_request(1, priority=1, state=RequestState.PREEMPTED)
    urgent = fake_request(2, priority=0, arrival_ns=9)
    assert chosen(priority.ORDER, [preempted, urgent], order_view()) is urgent


def test_priority_takes_the_earlier_arrival_though_it_came_later() -> None:
    """A request that is resumed keeps the arrival that it had."""
    late, resumed = fake_request(1, arrival_ns=5), fake_request(2, arrival_ns=4)
    assert chosen(priority.ORDER, [late, resumed], order_view()) is resumed


@pytest.mark.parametrize(
    ("waited_s", "expected"),
    [(0, "idle"), (4, "idle"), (5, "busy"), (20, "busy")],
)
def test_waiting_five_seconds_is_worth_five_thousand_tokens(waited_s: int, expected: str) -> None:
    """busy had 5,000 tokens more than idle, and at 1,000 a second they are forgiven; it came first, so a tie is its."""
    busy = fake_request(1, tenant="busy", queued_ns=0)
    idle = fake_request(2, tenant="idle", queued_ns=waited_s * SECOND)
    view = order_view(
        now_ns=waited_s * SECOND,
        served_tokens={"busy": 15_000, "idle": 10_000},
        aging_tokens_per_s=1000,
        aging_max_tokens=20_000,
    )
    taken = chosen(fair.ORDER, [busy, idle], view)
    assert taken is not None and taken.tenant == expected


def test_waiting_is_worth_twenty_thousand_tokens_at_most() -> None:
    busy, idle = fake_request(1, tenant="busy"), fake_request(2, tenant="idle", queued_ns=3600 * SECOND)
    for served, expected in ((20_000, busy), (20_001, idle)):
        view = order_view(
            now_ns=3600 * SECOND,
            served_tokens={"busy": served, "idle": 0},
            aging_tokens_per_s=1000,
            aging_max_tokens=20_000,
        )
        assert chosen(fair.ORDER, [busy, idle], view) is expected


def test_fair_without_tenants_is_fcfs() -> None:
    requests = [fake_request(2), fake_request(1), fake_request(3, state=RequestState.PREEMPTED)]
    assert chosen(fair.ORDER, requests, order_view(served_tokens={"": 10**9})) is requests[2]


def test_more_than_128_waiting_are_first_come_first_served_and_no_prefix_is_looked_up() -> None:
    hits = []

    def num_cached_tokens(request: Request) -> int:
        hits.append(request.rank[2])
        return request.rank[2]

    view = order_view(num_cached_tokens=num_cached_tokens)
    requests = [fake_request(order) for order in range(129)]
    taken = chosen(cache_aware.ORDER, requests, view)
    assert taken is requests[0] and hits == []
    taken = chosen(cache_aware.ORDER, requests[:128], view)
    assert taken is requests[127] and sorted(hits) == list(range(128))


def test_who_came_first_goes_before_every_hit_after_twenty_seconds() -> None:
    """Fresh requests with a long hit keep coming; one with nothing cached is behind them no longer than that."""
    for now_s, expected in ((19, 2), (20, 1), (3600, 1)):
        cold, hot = fake_request(1, queued_ns=0), fake_request(2, queued_ns=now_s * SECOND)
        view = order_view(
            now_ns=now_s * SECOND,
            num_cached_tokens=lambda request: 100_000 * (request.rank[2] == 2),
            aging_tokens_per_s=1000,
            aging_max_tokens=20_000,
        )
        taken = chosen(cache_aware.ORDER, [cold, hot], view)
        assert taken is not None and taken.rank[2] == expected


def test_without_aging_a_hit_always_goes_first() -> None:
    cold, hot = fake_request(1), fake_request(2)
    view = order_view(now_ns=10**6 * SECOND, num_cached_tokens=lambda request: request.rank[2])
    assert chosen(cache_aware.ORDER, [cold, hot], view) is hot
