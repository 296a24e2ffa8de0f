"""One request as the scheduler sees it: its tokens, how far they are computed, its blocks and its row."""

from __future__ import annotations

from enum import Enum

import msgspec

from ..kv_cache.block_hash import BlockKeys, extra_keys
from ..mailbox.messages.admission import Admit
from ..mailbox.messages.requests import TokenLogprobs, Usage
from ..mailbox.messages.sampling import SamplingParams
from ..topology.boards import TOKENS_PER_SAMPLING_ENTRY
from .limits import SchedulerLimits
from .prompt_logprobs import GatheredLogprobs
from .row_sampling import row_sampling_of


class RequestState(Enum):
    """Where a request is in its life; everything after PREEMPTED is finished."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Back at the head of waiting: its blocks are freed, all its tokens will be computed again."""
    STOPPED = "stopped"
    LENGTH_CAPPED = "length_capped"
    ABORTED = "aborted"
    IGNORED = "ignored"
    """It could never have been served: it was told so at once, and never queued."""
    ERROR = "error"
    REPETITION = "repetition"
    """Its last tokens are one pattern again and again."""

    @property
    def is_finished(self) -> bool:
        """The request has ended."""
        return self in _FINISH_REASONS

    @property
    def finish_reason(self) -> str:
        """What the client is told; only of a finished state."""
        return _FINISH_REASONS[self]


_FINISH_REASONS = {
    RequestState.STOPPED: "stop",
    RequestState.LENGTH_CAPPED: "length",
    RequestState.ABORTED: "abort",
    RequestState.IGNORED: "length",
    RequestState.ERROR: "error",
    RequestState.REPETITION: "repetition",
}

RequestKey = tuple[str, int]
"""(request_id, choice): choice i of n is a request of its own here."""

Rank = tuple[int, int, int]
"""(priority, arrival_ns, order of coming): a lower one is more urgent; no two requests have the same."""


class Request:
    """Mutable; owned by the scheduler.

    Invariants: `num_computed_tokens <= num_tokens + num_in_flight`; a running request has a row, a run and blocks for
    its computed tokens, any other has none of them and nothing computed or in flight.
    """

    __slots__ = (
        "attempt",
        "block_ids",
        "block_keys",
        "cached_tokens",
        "eos_token_ids",
        "extra_keys",
        "first_row_ns",
        "key",
        "logprobs",
        "max_total_tokens",
        "num_computed_tokens",
        "num_deaths",
        "num_in_flight",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_resumed_tokens",
        "num_sampling_tokens",
        "prompt_logprobs",
        "queued_ns",
        "rank",
        "row",
        "run",
        "sampling",
        "state",
        "stop_token_ids",
        "token_ids",
        "tokenizer",
        "worker_sampling",
    )

    def __init__(self, admit: Admit, limits: SchedulerLimits) -> None:
        self.key: RequestKey = (admit.request_id, admit.choice)
        self.attempt = admit.attempt
        self.tokenizer: str | None = admit.tokenizer
        """The reply address; None: it died, and no higher attempt has claimed the request."""
        self.sampling = admit.sampling
        self.worker_sampling = row_sampling_of(admit.sampling, admit.eos_token_ids)
        self.num_sampling_tokens = TOKENS_PER_SAMPLING_ENTRY * self.worker_sampling.num_entries
        """What their lists take of a plan, in known tokens."""
        self.eos_token_ids = frozenset(() if admit.sampling.ignore_eos else admit.eos_token_ids)
        """Empty if they are ignored."""
        self.stop_token_ids = frozenset(admit.sampling.stop_token_ids)
        self.rank: Rank = (admit.priority, admit.arrival_ns, 0)
        """Its last part is set when it is queued."""
        self.token_ids = [*admit.prompt_token_ids, *admit.output_token_ids]
        """Prompt, then output as far as it is known."""
        self.num_prompt_tokens = len(admit.prompt_token_ids)
        self.num_resumed_tokens = len(admit.output_token_ids)
        """Output tokens that came with the request."""
        max_tokens = admit.sampling.max_tokens
        wanted = limits.max_total_tokens if max_tokens is None else self.num_prompt_tokens + max_tokens
        self.max_total_tokens = min(wanted, limits.max_total_tokens)
        self.logprobs: list[TokenLogprobs] | None = None if admit.sampling.logprobs is None else []
        """One entry an output token behind the resumed ones, if asked for."""
        self.state = RequestState.WAITING
        self.run: int | None = None
        self.row: int | None = None
        self.num_computed_tokens = 0
        """Positions that plans made so far cover, those in flight included."""
        self.num_in_flight = 0
        """Tokens that plans in flight will yield."""
        self.block_ids: list[int] = []
        self.extra_keys = extra_keys(admit.cache_salt)
        self.block_keys = BlockKeys(limits.block_size, self.extra_keys)
        self.num_registered_blocks = 0
        self.prompt_logprobs: GatheredLogprobs | None = None
        """Gathered until the first token is known; None: not asked for, or handed over. A request that comes with
        output has brought them to its client before."""
        if admit.sampling.prompt_logprobs is not None and not admit.output_token_ids:
            self.prompt_logprobs = GatheredLogprobs()
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache at first admission; None before it."""
        self.num_deaths = 0
        """Deaths of the worker at which it was in the plans in flight, since its last token."""
        self.queued_ns = 0
        """When it came, by the scheduler's `now_ns`."""
        self.first_row_ns: int | None = None
        """When it first took a row; None before that, and once a token has come."""

    @property
    def row_sampling(self) -> SamplingParams:
        """What the worker gets with a new row."""
        if self.prompt_logprobs is not None or self.worker_sampling.prompt_logprobs is None:
            return self.worker_sampling
        return msgspec.structs.replace(self.worker_sampling, prompt_logprobs=None)

    @property
    def num_plan_tokens(self) -> int:
        """What a new row takes of a plan, in known tokens."""
        return len(self.token_ids) + self.num_sampling_tokens

    @property
    def has_lost_prompt_logprobs(self) -> bool:
        """They were asked for, and have been handed over."""
        return self.prompt_logprobs is None and self.sampling.prompt_logprobs is not None

    @property
    def num_tokens(self) -> int:
        """Known tokens, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Known output tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute until the next one can be sampled, the tokens in flight counted as known."""
        return len(self.token_ids) + self.num_in_flight - self.num_computed_tokens

    @property
    def can_be_planned(self) -> bool:
        """Its length, with what is in flight, leaves room for one more token: ends by length waste nothing."""
        return len(self.token_ids) + self.num_in_flight < self.max_total_tokens

    def forget_computed(self) -> None:
        """It lost its run: nothing is computed or in flight, and all of it will be computed again."""
        self.num_computed_tokens = self.num_in_flight = self.num_registered_blocks = 0
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = GatheredLogprobs()

    def forget_output(self, block_size: int) -> None:
        """Begin again, as the request came for the first time; it does not run now."""
        del self.token_ids[self.num_prompt_tokens :]
        self.num_resumed_tokens = 0
        self.block_keys = BlockKeys(block_size, self.extra_keys)
        if self.logprobs is not None:
            self.logprobs = []
        if self.sampling.prompt_logprobs is not None:
            self.prompt_logprobs = GatheredLogprobs()

    def usage(self) -> Usage:
        """Token counts so far."""
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_output_tokens,
            cached_tokens=self.cached_tokens or 0,
        )
