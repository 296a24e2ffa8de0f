"""The policies of a scheduler, by name. What each of the three kinds decides, and may look at: `policy_views`."""

from __future__ import annotations

from typing import NamedTuple

from . import cache_aware, chunk, cost, estimate, fair, fcfs, lifo, priority, retract, whole_prompt
from .limits import AdmissionName, PolicyName, PreemptionName, SchedulerLimits
from .policy_views import BlocksWanted, ChooseVictim, Order

ORDERS: dict[PolicyName, Order] = {
    "fcfs": fcfs.ORDER,
    "priority": priority.ORDER,
    "fair": fair.ORDER,
    "cache_aware": cache_aware.ORDER,
}
VICTIMS: dict[PreemptionName, ChooseVictim] = {
    "lifo": lifo.choose_victim,
    "retract": retract.choose_victim,
    "cost": cost.choose_victim,
}
ADMISSIONS: dict[AdmissionName, BlocksWanted] = {
    "chunk": chunk.blocks_wanted,
    "whole_prompt": whole_prompt.blocks_wanted,
    "estimate": estimate.blocks_wanted,
}


class Policies(NamedTuple):
    """One of each kind."""

    order: Order
    choose_victim: ChooseVictim
    blocks_wanted: BlocksWanted


def make_policies(limits: SchedulerLimits) -> Policies:
    """Those that the limits name."""
    return Policies(ORDERS[limits.policy], VICTIMS[limits.preemption], ADMISSIONS[limits.admission])
