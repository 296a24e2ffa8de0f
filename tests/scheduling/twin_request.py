"""A request as the twin keeps it, and when its tokens end it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

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
    """How a request, or a turn of a session, ended: what its client is told."""

    reason: str
    stop_reason: int | None = None
    status: int = 500


class TwinRequest:
    """Its tokens, how many positions plans cover, and the blocks that hold them."""

    def __init__(self, admit: Admit, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.admit = admit
        """Of the turn: a session's prompt is everything up to its last input."""
        self.key: Key = (admit.request_id, admit.choice)
        self.attempt = admit.attempt
        self.tokenizer: str | None = admit.tokenizer
        self.tokens = [*admit.prompt_token_ids, *admit.output_token_ids]
        self.num_come_with = admit.first_output_index
        """Output tokens of a session that stood in the prompt that came."""
        self.earlier_output: list[int] = []
        """Of turns before this one, but for those."""
        self.is_open = admit.is_session
        """More input may come."""
        self.lacks_grammar = bool(admit.grammar_key)
        """It does not know that its grammar is ready."""
        self.has_unsent_pause = False
        """Its client was not told yet how its turn ended."""
        self.num_counted = 0
        """Tokens of the prompt that were counted, or were output."""
        self.has_told_prompt = admit.sampling.prompt_logprobs is None or bool(admit.output_token_ids)
        """No log-probabilities of its prompt are wanted any more."""
        self.state = WAITING
        self.was_preempted = False
        self.order = 0
        """Of coming; of a session's newest input."""
        self.waits_since = 0
        """Grows with each time that somebody begins to wait."""
        self.queued_ns = 0
        self.blocks: list[int] = []
        self.num_labelled = 0
        """Of the blocks, those that were made findable, or found."""
        self.num_loaded = 0
        """Of a waiting one: positions that its blocks hold, for they were loaded."""
        self.num_computed = 0
        """Positions that plans cover, drafts not counted."""
        self.num_pending = 0
        """Plans in flight that yield tokens of it."""
        self.drafts: list[int] = []
        """Guesses at what comes behind the known tokens."""
        self.num_drafts_in_flight = 0
        self.allowances: list[int] = []
        """Of each plan in flight that yields tokens of it, how many drafts the worker may guess."""
        self.num_remote_tokens = admit.num_remote_tokens
        self.transfer: object = None
        self.num_cached_tokens: int | None = None
        """At first admission; of a session's turn."""
        self.num_deaths = self.num_preemptions = 0
        self.orphan: tuple[int, int] | None = None
        """Until when (ns) it may be claimed; and a number that grows."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.admit.prompt_token_ids)

    @property
    def turn_output(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def output(self) -> list[int]:
        """Of all turns, but for what stood in the prompt that came."""
        return self.earlier_output + self.turn_output

    @property
    def output_index(self) -> int:
        """Of the next output token, over all turns."""
        return self.num_come_with + len(self.output)

    @property
    def longest(self) -> int:
        """What model and pool can hold at all; the last token is never computed and needs no place."""
        return min(self.limits.max_model_len, self.limits.num_blocks * self.limits.block_size + 1)

    @property
    def max_total(self) -> int:
        """Where the turn ends at the latest."""
        assert self.admit.sampling.max_tokens is not None
        return min(self.longest, self.num_prompt_tokens + self.admit.sampling.max_tokens)

    @property
    def num_missing(self) -> int:
        """Positions to compute until a token can be sampled."""
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def can_be_planned(self) -> bool:
        """One token more may come, and it is known which is its place."""
        return len(self.tokens) + self.num_pending < self.max_total and not self.num_drafts_in_flight

    @property
    def num_guesses(self) -> int:
        """Drafts that the worker may guess next: behind the last known token, with room for one token more."""
        if not self.limits.max_drafts or self.num_missing != 1:
            return 0
        if self.admit.grammar_key and not self.limits.has_constrained_drafts:
            return 0
        return min(self.limits.max_drafts, self.max_total - len(self.tokens) - self.num_pending - 1)

    @property
    def last_place(self) -> int:
        """Where it ends: the last token is not computed."""
        return self.max_total - 1

    @property
    def gathers(self) -> bool:
        """Each position of the prompt must be computed, for its log-probabilities were asked for."""
        return not self.has_told_prompt

    @property
    def num_plan_tokens(self) -> int:
        """What it takes of a plan as a new row: tokens, and the ids that may not be sampled early."""
        sampling = self.admit.sampling
        early = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.admit.eos_token_ids)}
        return len(self.tokens) + TOKENS_PER_SAMPLING_ENTRY * (len(early) if sampling.min_tokens else 0)

    def lose_everything(self) -> None:
        """Nothing is computed or loaded, nothing that was planned counts."""
        self.blocks = []
        self.num_computed = self.num_pending = self.num_drafts_in_flight = 0
        self.allowances = []
        self.num_labelled = self.num_loaded = 0
        self.drafts = []

    def begin_turn(self, token_ids: list[int]) -> None:
        """A session goes on behind its output so far and this input."""
        first_output_index, self.earlier_output = self.output_index, self.output
        self.num_counted, self.num_cached_tokens = len(self.tokens), None
        self.tokens = self.tokens + token_ids
        self.admit = msgspec.structs.replace(
            self.admit,
            prompt_token_ids=list(self.tokens),
            output_token_ids=[],
            first_output_index=first_output_index,
        )

    def end_after_last_token(self) -> TwinEnd | None:
        """Rules, section 1: EOS, stop ids, length, repetition; all but the length after `min_tokens`."""
        sampling, last = self.admit.sampling, self.tokens[-1]
        is_late = len(self.turn_output) >= sampling.min_tokens
        if is_late and not sampling.ignore_eos and last in self.admit.eos_token_ids:
            return TwinEnd("stop")
        if is_late and last in sampling.stop_token_ids:
            return TwinEnd("stop", last)
        if len(self.tokens) >= self.max_total:
            return TwinEnd("length")
        if is_late and repeats(self.turn_output, sampling.repetition_detection):
            return TwinEnd("repetition")
        return None
