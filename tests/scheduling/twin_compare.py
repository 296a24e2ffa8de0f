"""The scheduler beside its twin: both in the same words, and a difference as a person wants to read it."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

import msgspec
import numpy as np

from callboard.mailbox.messages.requests import Finish
from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_rows import drafts_of, guesses_of, ints
from callboard.tests.scheduling.twin import Twin
from callboard.tests.scheduling.twin_plan import TwinNewRow, TwinPlan, TwinRow
from callboard.tests.scheduling.twin_request import FOR_INPUT, Key, TwinEnd
from callboard.tests.scheduling.twin_state import Told


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
            guesses_of(plan),
        )
        for run, start, count, samples, drafts, (most, end) in zip(*columns, strict=True):
            read.rows.append(TwinRow(self._key_of_run[run], start, count, samples, tuple(drafts), most, end))
        return read

    def runs(self, plan: StepPlan) -> list[tuple[Key, int]]:
        """Who begins a run in the plan."""
        return [((new.request_id, new.choice), new.run) for new in plan.new_rows]


def compare_plans(got: TwinPlan | None, expected: TwinPlan | None) -> None:
    """Raises Difference with both, line by line."""
    if got != expected:
        lines = [["nothing"] if plan is None else plan.lines() for plan in (got, expected)]
        raise Difference("the plan\n" + side_by_side(*lines))


def compare_states(scheduler: Scheduler, twin: Twin) -> None:
    """Every live request, the pool and the counts. Raises Difference."""
    got, expected = facts_of_scheduler(scheduler), facts_of_twin(twin)
    if got != expected:
        raise Difference("the state after the call\n" + side_by_side(got.lines(), expected.lines()))


def side_by_side(got: list[str], expected: list[str]) -> str:
    """Two columns; lines that differ are marked."""
    width = max(map(len, ("scheduler", *got)))
    rows = zip_longest(["scheduler", *got], ["twin", *expected], fillvalue="-")
    return "\n".join(f"{' ' if a == b or a == 'scheduler' else '!'} {a:<{width}} | {b}" for a, b in rows)


class Facts(NamedTuple):
    """What is live, and the numbers: of the scheduler or of the twin."""

    requests: dict[Key, tuple[str, int, int, list[int]]]
    """State, computed positions, known tokens, blocks."""
    waiting: tuple[int, int]
    """Requests, their prompt tokens."""
    blocks: tuple[int, int]
    """Free, findable."""
    counts: tuple[int, ...]
    """Preempted, finished, admitted, too late, paused now."""
    tokens: tuple[int, ...]
    """Found, looked up, of prompts, of outputs, drafts, accepted ones."""

    def lines(self) -> list[str]:
        requests = [
            f"{key} {state} {computed} of {known} computed blocks {blocks}"
            for key, (state, computed, known, blocks) in sorted(self.requests.items())
        ]
        names = ("waiting", "blocks", "counts", "tokens")
        return [*requests, *(f"{name} {getattr(self, name)}" for name in names)]


def facts_of_scheduler(scheduler: Scheduler) -> Facts:
    """As it tells them."""
    numbers, pool = scheduler.statistics(), scheduler._state.pool.statistics()
    return Facts(
        {
            request.key: (request.state.value, request.num_computed_tokens, request.num_tokens, request.block_ids)
            for request in scheduler._state.requests()
        },
        (numbers.num_waiting, numbers.num_waiting_tokens),
        (pool.num_free, pool.num_cached),
        (
            numbers.num_preemptions,
            numbers.num_finished,
            numbers.num_admitted,
            numbers.num_timed_out,
            numbers.num_paused,
        ),
        (
            numbers.prefix_cache_hits,
            numbers.prefix_cache_queries,
            numbers.prompt_tokens,
            numbers.generation_tokens,
            numbers.num_draft_tokens,
            numbers.num_accepted_tokens,
            numbers.num_late_masks,
        ),
    )


def facts_of_twin(twin: Twin) -> Facts:
    """As the scheduler must have them."""
    state = twin.state
    waiting = state.waiting()
    num_paused = len([request for request in state.live.values() if request.state == FOR_INPUT])
    return Facts(
        {key: (r.state, r.num_computed, len(r.tokens), r.blocks) for key, r in state.live.items()},
        (len(waiting), sum(request.num_prompt_tokens for request in waiting)),
        (len(state.pool.free), len(state.pool.contents)),
        (state.num_preemptions, state.num_finished, state.num_admitted, state.num_timed_out, num_paused),
        (
            state.num_hit_tokens,
            state.num_asked_tokens,
            state.num_prompt_tokens,
            state.num_generated_tokens,
            state.num_drafts,
            state.num_accepted,
            state.num_late,
        ),
    )


def as_told(finish: Finish) -> Told:
    """In the twin's words."""
    usage = finish.usage
    end = TwinEnd(finish.reason, finish.stop_reason, finish.status)
    return Told(end, usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens)


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
