"""What a plan's result looks like if it is as asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..mailbox.messages.steps import StepPlan, StepResult


def expected_rows(plan: StepPlan) -> tuple[bytes, bytes]:
    """Runs (int64 [k]) and positions (int32 [k]) of the result: of rows that sample, the place behind what is known."""
    ends = np.frombuffer(plan.starts, "<i4") + np.frombuffer(plan.num_tokens, "<i4")
    if plan.num_drafts:
        ends = ends - np.frombuffer(plan.num_drafts, "<i4")
    samples = np.frombuffer(plan.samples, np.bool_)
    return np.frombuffer(plan.runs, "<i8")[samples].tobytes(), ends[samples].astype("<i4").tobytes()


def all_as_expected(plans: Sequence[StepPlan], results: Sequence[StepResult], following: Sequence[StepPlan]) -> bool:
    """The results have the positions of their plans, of which each row samples and none has drafts.

    `following`: of each plan one after it, or itself; its rows go on where the plan's ended if it has the same runs.
    """
    unsure = [
        (plan, result)
        for plan, result, after in zip(plans, results, following, strict=True)
        if after.starts != result.positions or after.runs != plan.runs or after is plan
    ]
    if not unsure:
        return True
    starts = np.frombuffer(b"".join([plan.starts for plan, _ in unsure]), "<i4")
    num_tokens = np.frombuffer(b"".join([plan.num_tokens for plan, _ in unsure]), "<i4")
    positions = b"".join([result.positions for _, result in unsure])
    return (starts + num_tokens).astype("<i4", copy=False).tobytes() == positions
