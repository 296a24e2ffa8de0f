"""Fair share over time: against a reference of the virtual token counter, and the bound that its paper proves."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.scheduling import fair
from callboard.scheduling.request import Request
from callboard.scheduling.waiting_lines import HeapLines
from callboard.tests.scheduling.fake_request import fake_request, order_view

SECOND = 1_000_000_000


@dataclass
class ReferenceVTC:
    """The virtual token counter of Sheng et al. with weights 1 and 1, queues as lists.

    Counters grow by prompts when they are taken and by each token of output; a tenant with nothing there that comes is
    lifted to the lowest of those with something.
    """

    queues: dict[str, list[Request]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    running: list[Request] = field(default_factory=list)

    def come(self, request: Request) -> None:
        live = {other.tenant for other in self.running} | {tenant for tenant, queue in self.queues.items() if queue}
        if request.tenant not in live:
            lowest = min((self.counters[tenant] for tenant in live), default=0)
            self.counters[request.tenant] = max(self.counters.get(request.tenant, 0), lowest)
        self.queues.setdefault(request.tenant, []).append(request)

    def take(self) -> Request | None:
        tenants = [tenant for tenant, queue in self.queues.items() if queue]
        if not tenants:
            return None
        tenant = min(tenants, key=lambda t: (self.counters[t], self.queues[t][0].rank[2]))
        request = self.queues[tenant].pop(0)
        self.counters[tenant] += request.num_prompt_tokens
        self.running.append(request)
        return request

    def step(self) -> None:
        for request in self.running:
            self.counters[request.tenant] += 1
            request.num_output_tokens += 1
        self.running = [r for r in self.running if r.num_tokens < r.max_total_tokens]


work = st.lists(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 50), st.integers(1, 20)), max_size=4),
    max_size=25,
)
"""By step, who comes: tenant, tokens of prompt and of output."""


@settings(max_examples=40)
@given(work=work, num_rows=st.integers(1, 4))
def test_the_order_of_admission_is_that_of_the_reference(work: list[list[tuple[str, int, int]]], num_rows: int) -> None:
    reference, lines, num_come = ReferenceVTC(), HeapLines(fair.ORDER), 0
    for coming in work + [[]] * 30:
        for tenant, num_prompt, num_output in coming:
            num_come += 1
            request = fake_request(
                num_come, tenant=tenant, num_prompt_tokens=num_prompt, max_total_tokens=num_prompt + num_output
            )
            reference.come(request)
            lines.add(request)
        while len(reference.running) < num_rows:
            ours = fair.choose(lines, order_view(served_tokens=dict(reference.counters)))
            assert ours is reference.take()
            if ours is None:
                break
            lines.remove(ours)
        reference.step()


def serve(aging_tokens_per_s: int, aging_max_tokens: int) -> tuple[dict[str, int], int]:
    """Two tenants that always wait, one with ten times the arrivals and prompts of ten times the other's length, on 8
    rows with a step of 20 ms: tokens served to each, and the paper's bound, 2 * max(prompt, tokens in all rows)."""
    lines, running, served = HeapLines(fair.ORDER), list[Request](), {"many": 0, "few": 0}
    lengths = {"many": (500, 100), "few": (50, 30)}
    num_come, now_ns = 0, 0
    for step in range(3000):
        now_ns += SECOND // 50
        if step % 2 == 0:
            for tenant in ["many"] * 10 + ["few"]:
                num_come += 1
                num_prompt, num_output = lengths[tenant]
                lines.add(
                    fake_request(
                        num_come,
                        tenant=tenant,
                        queued_ns=now_ns,
                        num_prompt_tokens=num_prompt,
                        max_total_tokens=num_prompt + num_output,
                    )
                )
        view = order_view(
            now_ns=now_ns,
            served_tokens=served,
            aging_tokens_per_s=aging_tokens_per_s,
            aging_max_tokens=aging_max_tokens,
        )
        while len(running) < 8 and (request := fair.choose(lines, view)) is not None:
            lines.remove(request)
            running.append(request)
            served[request.tenant] += request.num_prompt_tokens
        for request in running:
            served[request.tenant] += 1
            request.num_output_tokens += 1
        running = [r for r in running if r.num_tokens < r.max_total_tokens]
    assert set(lines.lines()) == {"many", "few"}, "both waited to the end"
    return served, 2 * max(500, 8 * 600)


def test_ten_to_one_arrivals_are_served_alike() -> None:
    """Within the bound of the paper, and so within 10 % of equal; aging may shift it by what it is worth at most."""
    served, bound = serve(0, 0)
    assert abs(served["many"] - served["few"]) <= bound
    assert 0.9 < served["many"] / served["few"] < 1.1
    for aging_max_tokens in (1000, 20_000):
        served, bound = serve(1000, aging_max_tokens)
        assert abs(served["many"] - served["few"]) <= bound + aging_max_tokens
