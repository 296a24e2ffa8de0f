"""What the scheduler can be asked at any time: integers, so that they fit into the words of the progress page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from .draft_counts import NUM_PLACES

if TYPE_CHECKING:
    from .state import SchedulerState


class SchedulerStatistics(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Gauges and counters (since start) of one scheduler. The field order is the word order on the progress page."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Blocks that can be allocated at once, cached ones without an owner included."""
    num_preemptions: int = 0
    prompt_tokens: int = 0
    """Prompt tokens computed or found in the cache, counted at first admission."""
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    """Tokens looked up in the prefix cache."""
    prefix_cache_hits: int = 0
    """Tokens found in it."""
    num_finished: int = 0
    num_steps: int = 0
    num_steady_steps: int = 0
    """Steps after which the same rows went on: where the next plan can be published before the step ends."""
    num_overlapped_steps: int = 0
    """Steady steps whose successor was published before they ended."""
    num_leaks: int = 0
    """Blocks and rows that the integrity check found without an owner, and repaired."""
    num_failed_steps: int = 0
    """Steps that raised."""
    num_resumed: int = 0
    """Attempts after the first that were taken in."""
    num_orphans_ended: int = 0
    """Requests of a dead tokenizer that nobody resumed in time."""
    num_poisoned: int = 0
    """Requests ended with an error, for they made steps fail or workers die."""
    retry_after_s: int = 0
    """Seconds until a request that is refused now may find room, at the rate at which the queue drains."""
    num_queued_room: int = 0
    """Requests that could still be queued; 0 also before the first statistics are written (`num_blocks` is 0 then)."""
    num_admitted: int = 0
    """Requests that took a row for the first time."""
    queue_time_ns: int = 0
    """Sum of their times from coming to that row."""
    num_prefilled: int = 0
    """Admitted requests that have had their first token since."""
    prefill_time_ns: int = 0
    """Sum of their times from the first row to that token, preemptions included."""
    num_scheduled_tokens: int = 0
    """Tokens computed, or to be computed in the steps in flight, in all steps together."""
    num_timed_out: int = 0
    """Requests whose deadline passed."""
    num_paused: int = 0
    """Streaming sessions that wait for input."""
    num_draft_tokens: int = 0
    """Drafts that were planned, to be verified."""
    num_accepted_tokens: int = 0
    """Of them, those that were accepted."""
    num_late_masks: int = 0
    """Tokens that were to be drawn under a grammar whose mask was not there in time, and were planned again."""
    num_drafts: int = 0
    """Times that a row had drafts to verify."""
    accepted_at: tuple[int, ...] = (0,) * NUM_PLACES
    """Accepted drafts, by their place behind the last token."""


def statistics_of(state: SchedulerState) -> SchedulerStatistics:
    """Gauges and counters now."""
    counters = state.counters
    return SchedulerStatistics(
        num_running=len(state.running),
        num_waiting=len(state.waiting),
        num_waiting_tokens=state.num_waiting_tokens,
        num_blocks=state.limits.num_blocks,
        num_free_blocks=state.pool.num_free,
        num_preemptions=counters.num_preemptions,
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
        prefix_cache_queries=counters.prefix_cache_queries,
        prefix_cache_hits=counters.prefix_cache_hits,
        num_finished=counters.num_finished,
        num_steps=state.steps.num_planned,
        num_steady_steps=state.steps.num_steady,
        num_overlapped_steps=state.steps.num_overlapped,
        num_leaks=counters.num_leaks,
        num_failed_steps=counters.num_failed_steps,
        num_resumed=counters.num_resumed,
        num_orphans_ended=counters.num_orphans_ended,
        num_poisoned=counters.num_poisoned,
        retry_after_s=state.retry_after_s(1),
        num_queued_room=max(0, state.num_queued_room) if state.takes_tokens(1) else 0,
        num_admitted=counters.num_admitted,
        queue_time_ns=counters.queue_time_ns,
        num_prefilled=counters.num_prefilled,
        prefill_time_ns=counters.prefill_time_ns,
        num_scheduled_tokens=counters.num_scheduled_tokens,
        num_timed_out=counters.num_timed_out,
        num_paused=len(state.paused),
        num_draft_tokens=counters.num_draft_tokens,
        num_accepted_tokens=counters.num_accepted_tokens,
        num_late_masks=counters.num_late_masks,
        num_drafts=state.ledgers.drafts.num_drafts,
        accepted_at=tuple(state.ledgers.drafts.accepted_at.tolist()),
    )
