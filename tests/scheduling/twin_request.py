"""A request as the twin keeps it, and when its tokens end it."""

from __future__ import annotations

from typing import NamedTuple

from callboard.mailbox.messages.admission import Admit
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.fake_model import repeats
from callboard.topology.boards import TOKENS_PER_SAMPLING_ENTRY

Key = tuple[str, int]
"""(request_id, choice)"""

WAITING = "waiting"
FOR_GRAMMAR = "waiting_for_grammar"
FOR_REMOTE_KV = "waiting_for_remote_kv"
FOR_INPUT = "waiting_for_input"
RUNNING = "running"
PREEMPTED = "preempted"


class TwinEnd(NamedTuple):
    """How a request ended: what its client is told."""

    reason: str
    stop_reason: int | None = None
    status: int = 500


class TwinRequest:
    """Its tokens, how many positions plans cover, and the blocks that hold them."""

    def __init__(self, admit: Admit, limits: SchedulerLimits) -> None:
        self.admit = admit
        self.key: Key = (admit.request_id, admit.choice)
        self.attempt = admit.attempt
        self.tokenizer: str | None = admit.tokenizer
        self.tokens = [*admit.prompt_token_ids, *admit.output_token_ids]
        self.num_prompt_tokens = len(admit.prompt_token_ids)
        self.longest = min(limits.max_model_len, limits.num_blocks * limits.block_size + 1)
        assert admit.sampling.max_tokens is not None
        self.max_total = min(self.longest, self.num_prompt_tokens + admit.sampling.max_tokens)
        self.state = WAITING
        self.order = 0
        """Of coming; a session's newest input counts."""
        self.blocks: list[int] = []
        self.num_labelled = 0
        """Of the blocks, those that were made findable, or found."""
        self.num_computed = 0
        """Positions that plans cover, drafts included."""
        self.num_pending = 0
        """Plans in flight that yield tokens of it."""
        self.drafts: list[int] = []
        """Guesses at what comes behind the known tokens."""
        self.num_drafts_in_flight = 0
        self.num_remote_tokens = admit.num_remote_tokens
        self.num_cached_tokens: int | None = None
        """At first admission."""
        self.num_deaths = 0
        self.orphan_until_ns: int | None = None
        self.transfer: int | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_missing(self) -> int:
        """Positions to compute until a token can be sampled."""
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def can_be_planned(self) -> bool:
        """One token more may come, and it is known which is its place."""
        return len(self.tokens) + self.num_pending < self.max_total and not self.num_drafts_in_flight

    @property
    def gathers(self) -> bool:
        """Each position of the prompt must be computed, for its log-probabilities were asked for."""
        return self.admit.sampling.prompt_logprobs is not None and self.num_output_tokens == 0

    @property
    def num_plan_tokens(self) -> int:
        """What it takes of a plan as a new row: tokens, and the ids that may not be sampled early."""
        sampling = self.admit.sampling
        early = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.admit.eos_token_ids)}
        return len(self.tokens) + TOKENS_PER_SAMPLING_ENTRY * (len(early) if sampling.min_tokens else 0)

    def lose_everything(self) -> None:
        """Its run is over: nothing is computed, nothing that was planned counts."""
        self.blocks = []
        self.num_computed = self.num_pending = self.num_drafts_in_flight = self.num_labelled = 0
        self.drafts = []

    def end_after_last_token(self) -> TwinEnd | None:
        """Rules, section 1: EOS, stop ids, length, repetition; all but the length after `min_tokens`."""
        sampling, last = self.admit.sampling, self.tokens[-1]
        is_late = self.num_output_tokens >= sampling.min_tokens
        if is_late and not sampling.ignore_eos and last in self.admit.eos_token_ids:
            return TwinEnd("stop")
        if is_late and last in sampling.stop_token_ids:
            return TwinEnd("stop", last)
        if len(self.tokens) >= self.max_total:
            return TwinEnd("length")
        if is_late and repeats(self.tokens[self.num_prompt_tokens :], sampling.repetition_detection):
            return TwinEnd("repetition")
        return None
