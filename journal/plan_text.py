"""A plan as lines for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..mailbox.messages.steps import StepPlan
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event

MAX_ROWS = 64
"""More rows are counted, not shown."""


class RunNames:
    """Follows a replay: which request a run is of."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def of(self, run: int) -> str:
        """`request-id#choice`"""
        return self._names.get(run, "?")

    def events(self, now_ns: int, events: Sequence[Event]) -> None:
        """Nothing to learn."""

    def planned(self, plan: StepPlan) -> None:
        for new in plan.new_rows:
            self._names[new.run] = f"{new.request_id}#{new.choice}"

    def sent(self, now_ns: int, outgoing: Outgoing) -> None:
        """Nothing to learn."""


def plan_lines(plan: StepPlan, names: RunNames) -> list[str]:
    """What the ranks are to compute: a line a row."""
    num_tokens = _ints(plan.num_tokens)
    fresh = ", fresh" if plan.is_fresh else ""
    lines = [f"step {plan.step} of epoch {plan.epoch}{fresh}: {len(num_tokens):,} rows, {sum(num_tokens):,} tokens"]
    runs = np.frombuffer(plan.runs, "<i8").tolist()
    new_runs = {new.run: new for new in plan.new_rows}
    samples = np.frombuffer(plan.samples, np.bool_).tolist()
    drafts = _ints(plan.num_drafts) or [0] * len(runs)
    guesses = _ints(plan.max_drafts) or [-1] * len(runs)
    columns = zip(_ints(plan.rows), runs, _ints(plan.starts), num_tokens, samples, drafts, guesses, strict=True)
    for row, run, start, count, is_sampled, num_drafts, max_drafts in list(columns)[:MAX_ROWS]:
        new = new_runs.get(run)
        notes = [f"{num_drafts} drafts"] if num_drafts else []
        notes += [f"up to {max_drafts} drafts, from where it stands"] if max_drafts >= 0 else []
        notes += ["samples"] if is_sampled else []
        notes += [f"new, {len(new.token_ids) // 4} tokens, blocks {_list(_ints(new.block_ids))}"] if new else []
        positions = f"position {start}" if count == 1 else f"positions {start}..{start + count - 1}"
        lines.append(f"  row {row}, run {run}, {names.of(run)}: {', '.join([positions, *notes])}")
    if len(runs) > MAX_ROWS:
        lines.append(f"  and {len(runs) - MAX_ROWS:,} rows more")
    if plan.removed_rows:
        lines.append(f"  removed rows {_list(_ints(plan.removed_rows))}")
    if plan.block_rows:
        pairs = zip(_ints(plan.block_rows), _ints(plan.block_ids), strict=True)
        lines.append(f"  blocks {_list([f'{block} to row {row}' for row, block in pairs])}")
    return lines


def _ints(data: bytes) -> list[int]:
    values: list[int] = np.frombuffer(data, "<i4").tolist()
    return values


def _list(values: Sequence[object]) -> str:
    shown = ", ".join(map(str, values[:MAX_ROWS]))
    return f"{shown} and {len(values) - MAX_ROWS:,} more" if len(values) > MAX_ROWS else shown
