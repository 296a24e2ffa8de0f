"""What the HTTP server sees of a frontend actor: a protocol, so that each is tested without the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from ..mailbox.messages.grammar import OutputFormat
from ..mailbox.messages.requests import (
    AS_IT_IS,
    Explanation,
    Finish,
    Prompt,
    PromptDetails,
    PromptOptions,
    ReasoningMarks,
    ReasoningState,
    SessionInput,
    Tokenized,
    TokenText,
)
from ..mailbox.messages.sampling import SamplingParams
from ..scheduling.statistics import SchedulerStatistics
from ..topology.schema import KVCacheSection
from .grammar_statistics import GrammarStatistics


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What arrived since the last delta of one choice; deltas that the reader did not take yet are merged."""

    choice: int
    position: int
    """Output index of the first token in `token_ids`."""
    token_ids: list[int]
    text: str
    """Whole characters only; never taken back."""
    finish: Finish | None = None
    """Set on the last delta of the choice, which may be empty otherwise."""
    logprobs: list[TokenText] | None = None
    """One entry a token of `token_ids`, if asked for."""
    prompt: PromptDetails | None = None
    """In the first delta of the choice, if asked for."""
    pause: Finish | None = None
    """A turn of a streaming session ended so, behind this text: it waits for input, or goes on with what it has."""
    reasoning: ReasoningState | None = None
    """In the first delta of the choice, if asked for with `reasoning`: where the prompt has left it."""


class RequestStream(Protocol):
    """One live request. Iterate it for deltas; it ends when every choice has had its delta with `finish`.

    Deltas of one choice come in order, those of several choices in any; nothing comes of a choice after its `finish`.
    Iteration raises RequestError (InvalidRequest, Overloaded, ...) if any choice is refused, and then no choice goes
    on; EngineFailure if the engine dies, or died again and again under this request. One task iterates. `close()` may
    be called at any time and twice: it aborts all choices that have not ended.
    """

    request_id: str

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def __anext__(self) -> Delta: ...

    def close(self) -> None: ...


class Health(msgspec.Struct, frozen=True, gc=False):
    """Read from the progress page, without asking any actor."""

    is_live: bool
    """The engine makes progress, or has nothing to do, or is in a declared slow phase."""
    is_ready: bool
    """New requests are accepted and will be served now."""
    reason: str
    """Why not; empty when ready."""


class ActorStart(msgspec.Struct, frozen=True, gc=False):
    """How an actor's present incarnation started."""

    actor: str
    phase: str
    """What it is doing now: starting, loading, warming, serving, stepping, idle."""
    seconds: dict[str, float]
    """Of each phase of the start, in their order; the last one of a start under way goes on."""


class FrontendAPI(Protocol):
    """A frontend actor as its users see it. All methods are called from the actor's own event loop."""

    model_name: str
    max_model_len: int
    vocab_size: int
    max_live_requests: int
    """Choices of all requests that the engine holds at once."""
    has_priorities: bool
    """The scheduler orders by priority; else only priority 0 may be sent."""
    kv_cache: KVCacheSection
    """As the topology has it."""
    takes_sessions: bool
    """Each request of a client reaches this frontend: it is the only one, so sessions can get input."""
    tool_call_parser: str
    """How the model writes tool calls: a family in `text.tool_calls`, `none`, or `auto` if its template tells none."""
    reasoning_parser: str
    """How it marks its reasoning: a style in `text.reasoning`, `none` or `auto` likewise."""

    def submit(
        self,
        request_id: str,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        cache_salt: str = "",
        returns_prompt: bool = False,
        num_choices: int = 1,
        options: PromptOptions = AS_IT_IS,
        priority: int = 0,
        tenant: str = "",
        deadline_ms: float | None = None,
        session_idle_s: float | None = None,
        output_format: OutputFormat | None = None,
        reasoning: ReasoningMarks | None = None,
        kept_markers: tuple[str, ...] = (),
    ) -> RequestStream:
        """Send a request for `num_choices` >= 1 answers on its way; never waits.

        Those of its choices that have not ended do so `deadline_ms` from now, with the finish reason `timeout`. With
        `session_idle_s` it is a streaming session of one choice, which ends with `timeout` if it is paused for so long.
        Raises Overloaded (429), always with `retry_after_s`, or Unavailable (503).
        """
        ...

    def add_input(self, request_id: str, given: SessionInput | None) -> None:
        """More for a session: it goes in where its present turn ends, or now if that has. None: no more comes.

        Raises RequestError: 404 for no live session, 409 behind the last input, 429 if too many inputs wait, 503.
        """
        ...

    def health(self) -> Health: ...

    def startup(self) -> list[ActorStart]:
        """All actors of the engine, read from the progress page."""
        ...

    async def tokenize(self, prompt: Prompt, options: PromptOptions, *, returns_strings: bool = False) -> Tokenized:
        """Raises InvalidRequest, Overloaded, Unavailable, EngineFailure."""
        ...

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of ids in the vocabulary, special tokens included. Raises as `tokenize`."""
        ...

    async def explain(self, request_id: str) -> Explanation:
        """What the scheduler knows of a request that was submitted under this id, by whichever frontend; of one that
        it does not know, or no more, an Explanation without choices. Raises Overloaded, Unavailable, EngineFailure."""
        ...

    def scheduler_statistics(self) -> SchedulerStatistics: ...

    def grammar_statistics(self) -> GrammarStatistics | None:
        """None: there is no grammar actor."""
        ...

    def num_live_requests(self) -> int: ...
