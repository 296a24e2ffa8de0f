"""A request as policies see it: plain numbers, so that each can be drawn on its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from hypothesis import strategies as st

from callboard.scheduling.policy_views import OrderView
from callboard.scheduling.request import Rank, Request, RequestKey, RequestState


@dataclass(eq=False)
class FakeRequest:
    """Fields as in `Request`."""

    rank: Rank
    key: RequestKey
    state: RequestState = RequestState.WAITING
    tenant: str = ""
    queued_ns: int = 0
    num_prompt_tokens: int = 1
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    max_total_tokens: int = 100
    num_preemptions: int = 0
    block_ids: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


def fake_request(order: int, *, priority: int = 0, arrival_ns: int = 0, **fields: object) -> Request:
    """`order`: how many had come when it came."""
    rank = (priority, arrival_ns, order)
    return cast(Request, FakeRequest(rank, (f"r{order}", 0), **fields))  # type: ignore[arg-type]


def held(num_blocks: int) -> list[int]:
    """So many block ids."""
    return list(range(num_blocks))


def snapshot(requests: list[Request]) -> list[dict[str, object]]:
    """All fields of all requests, copied."""
    return [{name: _copied(value) for name, value in vars(request).items()} for request in requests]


def _copied(value: object) -> object:
    return list(value) if isinstance(value, list) else value


def order_view(**changes: object) -> OrderView:
    """Nobody was served, nothing is cached, waiting is worth nothing."""
    fields: dict[str, object] = dict(
        now_ns=0,
        served_tokens={},
        num_cached_tokens=lambda request: 0,
        aging_tokens_per_s=0,
        aging_max_tokens=0,
    )
    return OrderView(**(fields | changes))  # type: ignore[arg-type]


waiting_states = st.sampled_from([RequestState.WAITING, RequestState.PREEMPTED])


@st.composite
def waiting_requests(draw: st.DrawFn, max_size: int = 12) -> list[Request]:
    """Requests that wait, few tenants, priorities and times, so that there are ties."""
    size = draw(st.integers(0, max_size))
    orders = draw(st.permutations(range(size)))
    return [
        fake_request(
            order,
            priority=draw(st.integers(-1, 1)),
            arrival_ns=draw(st.integers(0, 2)),
            state=draw(waiting_states),
            tenant=draw(st.sampled_from("abc")),
            queued_ns=draw(st.integers(0, 3)) * 1_000_000_000,
        )
        for order in orders
    ]
