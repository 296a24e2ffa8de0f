"""What a server says of its requests: which live, and where the time of one went. Times in seconds."""

from __future__ import annotations

import msgspec


class WaitingSeconds(msgspec.Struct, frozen=True):
    """How long a choice waited, by what it waited for."""

    budget: float = 0.0
    sequences: float = 0.0
    blocks: float = 0.0
    grammar: float = 0.0
    adapter: float = 0.0
    remote_kv: float = 0.0
    input: float = 0.0
    priority: float = 0.0
    worker: float = 0.0

    @property
    def total(self) -> float:
        """All of them together."""
        parts: tuple[float, ...] = msgspec.structs.astuple(self)
        return sum(parts)


class Preemption(msgspec.Struct, frozen=True):
    """A time at which a choice lost its row."""

    step: int
    cause: str
    lost_tokens: int
    """Computed positions that had to be computed or found again."""


class ChoiceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One choice. `receive_s`, `tokenize_s`, `waiting_s.total`, `prefill_s`, `decode_s`, `deliver_s` and `unknown_s`
    follow one another, and together they are `total_s`; docs/api.md tells each."""

    index: int
    state: str
    waits_for: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    """None: it has not come to the scheduler."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    receive_s: float = 0.0
    tokenize_s: float = 0.0
    waiting_s: WaitingSeconds = WaitingSeconds()
    prefill_s: float = 0.0
    decode_s: float = 0.0
    deliver_s: float = 0.0
    unknown_s: float = 0.0
    total_s: float = 0.0
    chunks: tuple[int, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    recomputed_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    num_chunks: int = 0
    """With those that are not told."""
    num_preemptions: int = 0
    """With those that are not told."""


class RequestExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A request, live or lately ended."""

    id: str
    x_request_id: str | None = None
    state: str
    """`waiting`, `answering`, `sending`, `ended`; `live`: another frontend has it."""
    total_s: float
    write_s: float = 0.0
    """Of a stream: how long what was made waited for the client's connection to take it."""
    choices: list[ChoiceExplanation]
    choices_left_out: int = 0
    """Of very many prompts or choices the first are told."""


class LiveRequest(msgspec.Struct, frozen=True):
    """A request that has not ended."""

    id: str
    x_request_id: str
    state: str
    age_s: float
    num_choices: int
    completion_tokens: int
