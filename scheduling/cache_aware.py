"""The longest cached prefix first, so that what is cached is used before it is evicted.

The order that SGLang calls longest prefix match. With more than `MAX_SORTED` waiting it is first come, first served,
for each choice looks all of their prefixes up; preempted requests always go before others.

Starvation is bounded by time: once the request that came first has waited for `aging_max_tokens / aging_tokens_per_s`
seconds (20 by default) it goes first, whatever others have cached. Otherwise a request with nothing cached would wait
for as long as ones with a hit keep coming (sgl-project/sglang issue 31954: a tail of 20 to 60 s at a median of 0.7 s).
With `aging_tokens_per_s` 0 there is no such bound.
"""

from __future__ import annotations

from . import fcfs
from .policy_views import Order, OrderView, WaitingLines
from .request import Request, RequestState

MAX_SORTED = 128
"""Waiting requests up to which prefixes are compared."""

_NS_PER_S = 1_000_000_000


def choose(waiting: WaitingLines, view: OrderView) -> Request | None:
    """The most tokens cached, of equals the one that came first. O(waiting), which is at most `MAX_SORTED`."""
    head = waiting.first(fcfs.LINE)
    if head is None or head.state is RequestState.PREEMPTED:
        return head
    if len(waiting) > MAX_SORTED or _has_waited_enough(head, view):
        return head
    return min(waiting, key=lambda request: (-view.num_cached_tokens(request), request.rank[2]))


def _has_waited_enough(head: Request, view: OrderView) -> bool:
    worth = view.aging_tokens_per_s * (view.now_ns - head.queued_ns)
    return view.aging_tokens_per_s > 0 and worth >= view.aging_max_tokens * _NS_PER_S


ORDER = Order(line_of=fcfs.one_line, rank=fcfs.rank, choose=choose)
