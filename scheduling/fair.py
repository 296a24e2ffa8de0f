"""Fair share by tenant: the virtual token counter, with aging.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a line for each tenant, and the line whose tenant
has been served the fewest tokens goes first. Tokens are counted as they are served, so that long answers cost what they
cost although nobody knew; a tenant that comes back from a pause is lifted to the lowest of those that are there, so
idleness saves nothing up (both are the scheduler's, see `OrderView.served_tokens`). Nothing is left idle: whoever waits
alone is served whatever its count is.

Aging is ours: a tenant with an enormous head start must not keep another waiting beyond what a user bears. It moves a
count by at most `aging_max_tokens`, so it shifts shares once and not in the long run.
"""

from __future__ import annotations

from . import fcfs
from .policy_views import Order, OrderView, WaitingLines
from .request import Request

_NS_PER_S = 1_000_000_000


def tenant_of(request: Request) -> str:
    """A line a tenant; requests without one share a line."""
    return request.tenant


def choose(waiting: WaitingLines, view: OrderView) -> Request | None:
    """The head of the line with the lowest count, of equals the one that came first. O(tenants that wait)."""
    best: Request | None = None
    best_claim = (0, 0)
    for line in waiting.lines():
        head = waiting.first(line)
        assert head is not None, f"the line of {line!r} is empty"
        claim = (view.served_tokens[line] - _aging_tokens(head, view), head.rank[2])
        if best is None or claim < best_claim:
            best, best_claim = head, claim
    return best


def _aging_tokens(head: Request, view: OrderView) -> int:
    """What its waiting is worth, in whole tokens."""
    waited_ns = max(0, view.now_ns - head.queued_ns)
    return min(view.aging_max_tokens, view.aging_tokens_per_s * waited_ns // _NS_PER_S)


ORDER = Order(line_of=tenant_of, rank=fcfs.rank, choose=choose)
