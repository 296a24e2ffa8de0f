"""The scheduler beside its twin: both in the same words, and a difference as a person wants to read it."""

from __future__ import annotations

from itertools import zip_longest

import msgspec
import numpy as np

from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_rows import drafts_of, ints
from callboard.tests.scheduling.twin import Twin
from callboard.tests.scheduling.twin_plan import TwinNewRow, TwinPlan, TwinRow
from callboard.tests.scheduling.twin_request import FOR_INPUT, Key


class Difference(AssertionError):
    """Scheduler and twin do not agree."""


class PlanReader:
    """Knows which request a row and a run belong to, as a worker does."""

    def __init__(self) -> None:
        self._key_of_row: dict[int, Key] = {}
        self._key_of_run: dict[int, Key] = {}

    def read(self, plan: StepPlan) -> TwinPlan:
        """The plan in the twin's words."""
        read = TwinPlan()
        read.is_fresh = plan.is_fresh
        for new in plan.new_rows:
            key = (new.request_id, new.choice)
            self._key_of_row[new.row] = self._key_of_run[new.run] = key
            read.new_rows.append(TwinNewRow(key, new.attempt, tuple(ints(new.token_ids)), tuple(ints(new.block_ids))))
        appended = zip(ints(plan.block_rows), ints(plan.block_ids), strict=True)
        read.grown = [(self._key_of_row[row], block) for row, block in appended]
        columns = (
            np.frombuffer(plan.runs, "<i8").tolist(),
            ints(plan.starts),
            ints(plan.num_tokens),
            np.frombuffer(plan.samples, np.bool_).tolist(),
            drafts_of(plan),
        )
        for run, start, count, samples, drafts in zip(*columns, strict=True):
            read.rows.append(TwinRow(self._key_of_run[run], start, count, samples, tuple(drafts)))
        return read

    def runs(self, plan: StepPlan) -> list[tuple[Key, int]]:
        """Who begins a run in the plan."""
        return [((new.request_id, new.choice), new.run) for new in plan.new_rows]


def compare_plans(got: TwinPlan | None, expected: TwinPlan | None) -> None:
    """Raises Difference with both, line by line."""
    got_lines = ["nothing"] if got is None else got.lines()
    expected_lines = ["nothing"] if expected is None else expected.lines()
    if got_lines != expected_lines:
        raise Difference("the plan\n" + side_by_side(got_lines, expected_lines))


def compare_states(scheduler: Scheduler, twin: Twin) -> None:
    """Every live request, the pool and the counts. Raises Difference."""
    got, expected = scheduler_lines(scheduler), twin_lines(twin)
    if got != expected:
        raise Difference("the state after the call\n" + side_by_side(got, expected))


def side_by_side(got: list[str], expected: list[str]) -> str:
    """Two columns; lines that differ are marked."""
    width = max(map(len, ("scheduler", *got)))
    rows = zip_longest(["scheduler", *got], ["twin", *expected], fillvalue="-")
    return "\n".join(f"{' ' if a == b or a == 'scheduler' else '!'} {a:<{width}} | {b}" for a, b in rows)


def scheduler_lines(scheduler: Scheduler) -> list[str]:
    """What is live, by key, and the numbers."""
    lines = []
    for request in sorted(scheduler._state.requests(), key=lambda request: request.key):
        computed = f"{request.num_computed_tokens} of {request.num_tokens} computed"
        lines.append(f"{request.key} {request.state.value} {computed} blocks {list(request.block_ids)}")
    numbers = scheduler.statistics()
    pool = scheduler._state.pool.statistics()
    return [
        *lines,
        f"waiting {numbers.num_waiting} with {numbers.num_waiting_tokens} tokens",
        f"blocks free {pool.num_free} used {pool.num_used} cached {pool.num_cached}",
        f"preempted {numbers.num_preemptions} finished {numbers.num_finished} admitted {numbers.num_admitted}",
        f"hits {numbers.prefix_cache_hits} of {numbers.prefix_cache_queries}",
        f"tokens in {numbers.prompt_tokens} out {numbers.generation_tokens}",
        f"paused {numbers.num_paused} late {numbers.num_timed_out}",
        f"drafts {numbers.num_draft_tokens} accepted {numbers.num_accepted_tokens}",
    ]


def twin_lines(twin: Twin) -> list[str]:
    """As `scheduler_lines`."""
    state = twin.state
    lines = []
    for key, request in sorted(state.live.items()):
        computed = f"{request.num_computed} of {len(request.tokens)} computed"
        lines.append(f"{key} {request.state} {computed} blocks {request.blocks}")
    waiting = state.waiting()
    num_blocks, num_free = state.limits.num_blocks, len(state.pool.free)
    return [
        *lines,
        f"waiting {len(waiting)} with {sum(r.num_prompt_tokens for r in waiting)} tokens",
        f"blocks free {num_free} used {num_blocks - num_free} cached {len(state.pool.contents)}",
        f"preempted {state.num_preemptions} finished {state.num_finished} admitted {state.num_admitted}",
        f"hits {state.num_hit_tokens} of {state.num_asked_tokens}",
        f"tokens in {state.num_prompt_tokens} out {state.num_generated_tokens}",
        f"paused {len([r for r in state.live.values() if r.state == FOR_INPUT])} late {state.num_timed_out}",
        f"drafts {state.num_drafts} accepted {state.num_accepted}",
    ]


def brief(value: object) -> str:
    """A message without what has its default."""
    if not isinstance(value, msgspec.Struct):
        return repr(value)
    shown = []
    for field in msgspec.structs.fields(value):
        got = getattr(value, field.name)
        if field.required or got not in (field.default, b"", []):
            shown.append(f"{field.name}={brief(got)}")
    return f"{type(value).__name__}({', '.join(shown)})"
