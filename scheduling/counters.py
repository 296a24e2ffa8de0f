"""Counts since a scheduler's start."""

from __future__ import annotations


class Counters:
    """Meanings as in `SchedulerStatistics`."""

    def __init__(self) -> None:
        self.num_preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.num_finished = 0
        self.num_leaks = 0
        self.num_failed_steps = 0
        self.num_resumed = 0
        self.num_orphans_ended = 0
        self.num_poisoned = 0
        self.num_admitted = 0
        self.queue_time_ns = 0
        self.num_prefilled = 0
        self.prefill_time_ns = 0
        self.num_scheduled_tokens = 0
        self.num_timed_out = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_late_masks = 0
