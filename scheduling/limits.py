"""The numbers that bound a scheduler, fixed at its start."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..topology.boards import usual_plan_tokens

PolicyName = Literal["fcfs", "priority", "fair", "cache_aware"]
PreemptionName = Literal["lifo", "retract", "cost"]
AdmissionName = Literal["chunk", "whole_prompt", "estimate"]


class SchedulerLimits(msgspec.Struct, frozen=True):
    """Fields as in the topology's [scheduler] and [kv_cache] sections, resolved. Lengths in tokens, sizes in blocks."""

    max_num_seqs: int
    """Rows of a batch."""
    max_num_batched_tokens: int
    """Token budget of a step."""
    long_prefill_token_threshold: int
    """Longest chunk of a row in a step; 0: the budget."""
    pipeline_depth: int
    """Steps in flight."""
    watermark: float
    """Share of blocks that admission leaves free while something runs."""
    max_queued_requests: int
    """Requests that wait beyond those for which a row is free."""
    max_queued_tokens: int
    """Prompt tokens of the waiting."""
    num_blocks: int
    block_size: int
    prefix_caching: bool
    max_model_len: int
    """Longest prompt + output."""
    max_plan_tokens: int | None = None
    """Known tokens that travel in the new rows of one plan, entries of sampling parameters counted as such (one row
    always may go); None: a row of full length with all entries that it may have, or 4 * max_num_batched_tokens."""
    resume_grace_s: float = 10.0
    """After a tokenizer's death its requests have so long to be claimed by a higher attempt before they are ended."""
    policy: PolicyName = "fcfs"
    """Who is admitted first."""
    preemption: PreemptionName = "lifo"
    """Who gives its blocks up when they run out."""
    admission: AdmissionName = "chunk"
    """What must be free for a request to be admitted: its first chunk, its whole prompt, or that and an estimate of
    what all will still write."""
    fair_aging_tokens_per_s: int = 1000
    """Fair policy: a waiting request's tenant is treated as if it had had so many tokens less for each second."""
    fair_aging_max_tokens: int = 20_000
    """Fair policy: the most that waiting is worth."""
    max_drafts: int = 0
    """Drafts of a row in a step, if the worker has a proposer as its guest; 0: it has none."""
    has_adaptive_drafts: bool = False
    """A row has as many of them as are worth their time; False: as many as there may be."""
    max_ledgers: int = 1024
    """Ledgers of requests that have ended, kept for questions."""
    has_constrained_drafts: bool = False
    """Rows under a grammar have drafts, too: the worker tells what it will guess before it does."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "pipeline_depth", "num_blocks", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark is {self.watermark}, it must be a share under 1")

    @property
    def plan_tokens(self) -> int:
        """The bound on known tokens in the new rows of one plan."""
        if self.max_plan_tokens is not None:
            return self.max_plan_tokens
        return usual_plan_tokens(self.max_model_len, self.max_num_batched_tokens)

    @property
    def max_chunk(self) -> int:
        """Most tokens of one row in a step."""
        return self.long_prefill_token_threshold or self.max_num_batched_tokens

    @property
    def watermark_blocks(self) -> int:
        """Blocks that admission leaves free while something runs."""
        return int(self.watermark * self.num_blocks)

    @property
    def max_total_tokens(self) -> int:
        """Longest prompt + output of any request: the model's length, or what the pool holds and one token more.

        The last token is sampled but never computed, so it needs no place.
        """
        return min(self.max_model_len, self.num_blocks * self.block_size + 1)
