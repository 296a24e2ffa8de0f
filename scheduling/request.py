"""One request as the scheduler sees it: its tokens, how far they are computed, its blocks and its row."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from ..kv_cache.block_hash import BlockKeys, extra_keys
from ..mailbox.messages.admission import Admit
from ..mailbox.messages.requests import TokenLogprobs, Usage
from ..mailbox.messages.sampling import SamplingParams
from ..topology.boards import TOKENS_PER_SAMPLING_ENTRY
from .limits import SchedulerLimits
from .prompt_logprobs import GatheredLogprobs
from .request_state import RequestState
from .row_arrays import MAX_END_IDS, NO_TOKEN, RowArrays
from .row_sampling import row_sampling_of

__all__ = ["Rank", "Request", "RequestKey", "RequestState"]

RequestKey = tuple[str, int]
"""(request_id, choice): choice i of n is a request of its own here."""

Rank = tuple[int, int, int]
"""(priority, arrival_ns, order of coming): a lower one is more urgent; no two requests have the same."""


class Request:
    """Mutable; owned by the scheduler. While it runs its counts stand in the row arrays, and are read from there.

    Invariants: `num_computed_tokens <= num_tokens + num_in_flight`; a running request has a row, a run
    and blocks for its computed tokens; of the others only those hold blocks for which keys and values are loaded.
    """

    __slots__ = (
        "_rows",
        "attempt",
        "block_ids",
        "block_keys",
        "cache_salt",
        "cached_tokens",
        "deadline_ns",
        "draft_token_ids",
        "end_ids",
        "eos_token_ids",
        "first_output_index",
        "first_row_ns",
        "grammar_key",
        "is_open",
        "is_preempted",
        "is_session",
        "kept_token_ids",
        "key",
        "logprobs",
        "max_total_tokens",
        "needs_grammar",
        "num_accepted_tokens",
        "num_counted_tokens",
        "num_deaths",
        "num_draft_tokens",
        "num_loaded_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_remote_tokens",
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
        "tenant",
        "tokenizer",
        "transfer",
        "worker_sampling",
    )

    def __init__(self, admit: Admit, limits: SchedulerLimits) -> None:
        self.key: RequestKey = (admit.request_id, admit.choice)
        self.attempt = admit.attempt
        self.tokenizer: str | None = admit.tokenizer
        """The reply address; None: it died, and no higher attempt has claimed the request."""
        self.tenant = admit.tenant
        self.deadline_ns = admit.deadline_ns
        self.grammar_key = admit.grammar_key
        """Of the grammar that must be ready before it runs; empty: it has none."""
        self.needs_grammar = bool(admit.grammar_key)
        """It does not know yet that it is ready."""
        self.num_remote_tokens = admit.num_remote_tokens
        """Tokens of its prompt whose keys and values can be loaded; 0 once they were, or could not be."""
        self.sampling = admit.sampling
        self.worker_sampling = row_sampling_of(admit.sampling, admit.eos_token_ids)
        self.num_sampling_tokens = TOKENS_PER_SAMPLING_ENTRY * self.worker_sampling.num_entries
        """What their lists take of a plan, in known tokens."""
        self.eos_token_ids = frozenset(() if admit.sampling.ignore_eos else admit.eos_token_ids)
        """Empty if they are ignored."""
        self.stop_token_ids = frozenset(admit.sampling.stop_token_ids)
        self.end_ids = sorted(self.eos_token_ids | self.stop_token_ids)
        self.rank: Rank = (admit.priority, admit.arrival_ns, 0)
        """Its last part is set when it is queued."""
        self.kept_token_ids = array("i", admit.prompt_token_ids)
        self.kept_token_ids.extend(admit.output_token_ids)
        """Known tokens, prompt and output; while it runs those of its last block may be missing: see `token_ids`."""
        self.num_prompt_tokens = len(admit.prompt_token_ids)
        """Of a session: all that stood before its last input, and that."""
        self.first_output_index = admit.first_output_index
        """Of a session: output tokens of the turns before this one, which stand in its prompt now."""
        self.num_resumed_tokens = len(admit.output_token_ids)
        """Output tokens of this turn that came with the request."""
        self.is_session = admit.is_session
        self.max_total_tokens = 0
        self.set_length(limits)
        self.logprobs: list[TokenLogprobs] | None = None if admit.sampling.logprobs is None else []
        """One entry an output token behind the resumed ones, if asked for."""
        self.state = RequestState.WAITING
        self.is_open = admit.is_session
        """A session for which more input may come: it does not end by itself."""
        self.num_counted_tokens = 0
        """Known tokens that stand in the count of prompt tokens, or were output."""
        self._rows: RowArrays[Request] | None = None
        self.run: int | None = None
        self.row: int | None = None
        self.num_draft_tokens = self.num_accepted_tokens = 0
        """Drafts that were verified, in this turn; those that were accepted."""
        self.draft_token_ids: list[int] = []
        """Guesses behind the last known token, to be planned."""
        self.block_ids: list[int] = []
        self.cache_salt = admit.cache_salt
        self.block_keys = BlockKeys(limits.block_size, extra_keys(admit.cache_salt))
        self.num_loaded_tokens = 0
        """Of a waiting request: positions whose keys and values stand in its blocks."""
        self.transfer: int | None = None
        """The transfer that loads its keys and values."""
        self.prompt_logprobs: GatheredLogprobs | None = None
        """Gathered until the first token is known; None: not asked for, or handed over. A request that comes with
        output has brought them to its client before."""
        if admit.sampling.prompt_logprobs is not None and not admit.output_token_ids:
            self.prompt_logprobs = GatheredLogprobs()
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache at first admission; None before it."""
        self.num_deaths = 0
        """Deaths of the worker at which it was in the plans in flight, since its last token."""
        self.num_preemptions = 0
        """Times at which it gave its blocks up, for they had run out."""
        self.is_preempted = False
        """It has run before, and lost its row."""
        self.queued_ns = 0
        """When it came, by the scheduler's `now_ns`."""
        self.first_row_ns: int | None = None
        """When it first took a row; None before that, and once a token has come."""

    # What a plan needs of it

    @property
    def row_sampling(self) -> SamplingParams:
        """What the worker gets with a new row."""
        if self.prompt_logprobs is not None or self.worker_sampling.prompt_logprobs is None:
            return self.worker_sampling
        return msgspec.structs.replace(self.worker_sampling, prompt_logprobs=None)

    @property
    def num_plan_tokens(self) -> int:
        """What a new row takes of a plan, in known tokens."""
        return self.num_tokens + self.num_sampling_tokens

    @property
    def has_lost_prompt_logprobs(self) -> bool:
        """They were asked for, and have been handed over."""
        return self.prompt_logprobs is None and self.sampling.prompt_logprobs is not None

    # Counts

    @property
    def token_ids(self) -> array[int]:
        """Prompt, then output as far as it is known. Read only."""
        if self.row is not None:
            self.keep_tail()
        return self.kept_token_ids

    @property
    def num_tokens(self) -> int:
        """Known tokens, prompt and output."""
        rows = self._rows
        return len(self.kept_token_ids) if rows is None or self.row is None else int(rows.num_tokens[self.row])

    @property
    def num_output_tokens(self) -> int:
        """Known output tokens; of a session those of this turn."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_index(self) -> int:
        """Of the next output token, over all turns."""
        return self.first_output_index + self.num_output_tokens

    @property
    def num_computed_tokens(self) -> int:
        """Positions that plans made so far cover, those in flight included."""
        rows = self._rows
        return 0 if rows is None or self.row is None else int(rows.num_computed[self.row])

    @property
    def num_in_flight(self) -> int:
        """Plans in flight that will yield tokens of it."""
        rows = self._rows
        return 0 if rows is None or self.row is None else int(rows.num_expected[self.row] - rows.num_tokens[self.row])

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute until the next one can be sampled, the tokens in flight counted as known."""
        return self.num_tokens + self.num_in_flight - self.num_computed_tokens

    @property
    def needs_watch(self) -> bool:
        """More has to be done for each of its tokens than counting it and comparing it with `end_ids`."""
        sampling = self.sampling
        return (
            self.logprobs is not None
            or self.prompt_logprobs is not None
            or sampling.repetition_detection is not None
            or self.num_output_tokens < sampling.min_tokens
            or len(self.end_ids) > MAX_END_IDS
        )

    # Moves

    def enter(self, rows: RowArrays[Request], row: int, run: int, num_computed: int) -> None:
        """It takes a row of its own, with blocks that hold its first `num_computed` positions."""
        num_tokens = len(self.kept_token_ids)
        self._rows, self.row, self.run = rows, row, run
        rows.num_tokens[row] = rows.num_expected[row] = rows.num_sent[row] = num_tokens
        rows.num_computed[row] = num_computed
        rows.num_places[row] = len(self.block_ids) * rows.block_size
        rows.next_full[row] = num_computed + rows.block_size
        rows.max_total[row] = self.max_total_tokens
        rows.end_ids[:, row] = NO_TOKEN
        if len(self.end_ids) <= MAX_END_IDS:
            rows.end_ids[: len(self.end_ids), row] = self.end_ids
        rows.is_watched[row] = True
        rows.is_constrained[row] = bool(self.grammar_key)
        rows.tail_at[row] = num_tokens % rows.block_size
        start = num_tokens - num_tokens % rows.block_size
        rows.tail[row, : num_tokens - start] = self.kept_token_ids[start:]

    def keep_tail(self) -> None:
        """Take over the tokens that only the row has: at the latest when a block of them is full."""
        assert self._rows is not None and self.row is not None
        rows, row, num_kept = self._rows, self.row, len(self.kept_token_ids)
        num_missing = int(rows.num_tokens[row]) - num_kept
        if num_missing:
            start = num_kept % rows.block_size
            self.kept_token_ids.frombytes(rows.tail[row, start : start + num_missing].tobytes())

    def keep_block(self, block: bytes) -> None:
        """The row's tail is full: its tokens as int32 bytes, those that were kept before among them."""
        num_kept = len(self.kept_token_ids) % (len(block) // 4)
        self.kept_token_ids.frombytes(block[4 * num_kept :])

    def leave(self) -> None:
        """It gives its row up, and keeps its tokens; what was computed is forgotten."""
        assert self._rows is not None and self.row is not None
        self.keep_tail()
        self._rows.give_back(self.row)
        self._rows = self.row = self.run = None
        self.block_ids = []
        self.draft_token_ids = []
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = GatheredLogprobs()

    def append(self, token_id: int) -> None:
        """A token of a running request becomes known."""
        assert self._rows is not None and self.row is not None
        rows, row = self._rows, self.row
        rows.tail[row, rows.tail_at[row]] = token_id
        rows.tail_at[row] = (rows.tail_at[row] + 1) % rows.block_size
        rows.num_tokens[row] += 1
        if rows.tail_at[row] == 0:
            self.keep_tail()

    def take_drafts(self, num_drafts: int) -> list[int]:
        """The first so many go into a plan; the others are too many for it, and forgotten."""
        taken, self.draft_token_ids = self.draft_token_ids[:num_drafts], []
        if self._rows is not None and self.row is not None:
            self._rows.set_drafts(self.row, 0)
        return taken

    def add_input(self, token_ids: Sequence[int], limits: SchedulerLimits) -> None:
        """A paused session goes on behind `token_ids`: a new turn."""
        self.first_output_index = self.output_index
        self.num_counted_tokens = len(self.kept_token_ids)
        self.kept_token_ids.extend(token_ids)
        self.num_prompt_tokens = len(self.kept_token_ids)
        self.num_resumed_tokens = 0
        self.num_draft_tokens = self.num_accepted_tokens = 0
        self.cached_tokens = None
        self.set_length(limits)
        if self.logprobs is not None:
            self.logprobs = []

    def set_length(self, limits: SchedulerLimits) -> None:
        """Where this turn ends at the latest."""
        max_tokens = self.sampling.max_tokens
        wanted = limits.max_total_tokens if max_tokens is None else self.num_prompt_tokens + max_tokens
        self.max_total_tokens = min(wanted, limits.max_total_tokens)

    def cut_output(self, num_output_tokens: int) -> None:
        """Only so many output tokens of this turn count; it does not run now."""
        del self.kept_token_ids[self.num_prompt_tokens + num_output_tokens :]
        self.block_keys.forget_from(len(self.kept_token_ids))
        if self.logprobs is not None:
            del self.logprobs[max(0, num_output_tokens - self.num_resumed_tokens) :]

    def forget_output(self, block_size: int) -> None:
        """Begin again, as the request came for the first time; it does not run now."""
        del self.kept_token_ids[self.num_prompt_tokens :]
        self.num_resumed_tokens = 0
        self.block_keys = BlockKeys(block_size, extra_keys(self.cache_salt))
        if self.logprobs is not None:
            self.logprobs = []
        if self.sampling.prompt_logprobs is not None:
            self.prompt_logprobs = GatheredLogprobs()

    def usage(self) -> Usage:
        """Token counts so far; of a session those of this turn."""
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_output_tokens,
            cached_tokens=self.cached_tokens or 0,
            accepted_tokens=self.num_accepted_tokens,
            rejected_tokens=self.num_draft_tokens - self.num_accepted_tokens,
        )
