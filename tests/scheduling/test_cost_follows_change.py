"""What a step costs follows what changes in it: what nobody can use is not asked for."""

from __future__ import annotations

from typing import NoReturn

import pytest

from callboard.scheduling.limits import PolicyName
from callboard.tests.scheduling.fake_worker import make_admit, make_limits
from callboard.tests.scheduling.stage import Stage


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "cache_aware"])
@pytest.mark.parametrize("short", ["rows", "budget"])
def test_while_nobody_can_be_admitted_the_order_is_not_asked_who_is_next(policy: PolicyName, short: str) -> None:
    """A choice may cost what all that wait cost: tenants are compared, or prefixes looked up."""
    limits = {"max_num_seqs": 2} if short == "rows" else {"max_num_batched_tokens": 2}
    stage = Stage(make_limits(policy=policy, pipeline_depth=1, **limits))
    stage.at(1, *(make_admit(f"r{n}", [n], ignore_eos=True, max_tokens=50) for n in range(4)))
    stage.end_step(2)
    state = stage.scheduler._state
    assert (len(state.running), len(state.lines)) == (2, 2)

    def choose(*_args: object) -> NoReturn:
        raise AssertionError("the order is asked")

    state.policies = state.policies._replace(order=state.policies.order._replace(choose=choose))
    for now_ns in range(3, 10):
        stage.end_step(now_ns)
    assert len(stage.planned) == 9
