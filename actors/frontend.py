"""The frontend actor: holds each live request and what it has delivered, and hands text to whoever reads the stream.

It knows no HTTP: `server/` builds its app over this class, through the protocol in `frontend_api.py`. When an actor on
a request's way dies, the request goes on from what is held here (`gone`, `settled`): nobody else raises `attempt`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import assert_never

from ..errors import EngineFailure, Overloaded, RequestAtFault, RequestError, Unavailable
from ..mailbox import Inbox
from ..mailbox.messages.grammar import OutputFormat
from ..mailbox.messages.requests import (
    AS_IT_IS,
    Abort,
    Answer,
    Detokenize,
    Detokenized,
    Explain,
    Explanation,
    Finish,
    FrontendToTokenizer,
    Generate,
    Prompt,
    PromptOptions,
    Question,
    ReasoningMarks,
    Refused,
    SessionInput,
    TextDeltas,
    Tokenize,
    Tokenized,
    TokenizerToFrontend,
)
from ..mailbox.messages.sampling import SamplingParams
from ..scheduling.statistics import SchedulerStatistics
from ..shm_queue import mark_of
from ..topology.schema import KVCacheSection, ServerSection
from .faults import Faults
from .frontend_api import ActorStart, Health
from .grammar_statistics import GrammarStatistics
from .questions import Questions
from .refusals import error_of
from .room import check_choices, check_frontend, check_queue, check_sessions
from .sender import Sender
from .session_record import SessionRecord
from .sessions import Sessions, no_session
from .stream import Stream

MAX_SUSPICIONS = 3
"""Deaths that a request may have caused, with no new token between, after which it ends with an error."""


class Frontend:
    """Implements `FrontendAPI`. What is called `read_` reads the progress page."""

    def __init__(
        self,
        name: str,
        inbox: Inbox[TokenizerToFrontend],
        tokenizers: Mapping[str, Sender[FrontendToTokenizer]],
        faults: Faults,
        *,
        model_name: str,
        max_model_len: int,
        vocab_size: int,
        max_live_requests: int,
        scheduler: str,
        read_health: Callable[[], Health],
        read_statistics: Callable[[], SchedulerStatistics],
        read_grammar_statistics: Callable[[], GrammarStatistics | None],
        read_startup: Callable[[], list[ActorStart]],
        has_priorities: bool = False,
        kv_cache: KVCacheSection = KVCacheSection(),  # noqa: B008  (frozen)
        takes_sessions: bool = True,
        tool_call_parser: str = "none",
        reasoning_parser: str = "none",
        server: ServerSection = ServerSection(),  # noqa: B008  (frozen)
    ) -> None:
        self.name = name
        self.inbox = inbox
        self.faults = faults
        self.model_name = model_name
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.has_priorities = has_priorities
        self.kv_cache = kv_cache
        self.takes_sessions = takes_sessions
        self.tool_call_parser = tool_call_parser
        self.reasoning_parser = reasoning_parser
        self._server = server
        self._tokenizers = dict(tokenizers)
        self.max_live_requests = max_live_requests
        self._turn = itertools.cycle(self._tokenizers)
        self._scheduler = scheduler
        self._read_health = read_health
        self._read_statistics = read_statistics
        self._read_grammar_statistics = read_grammar_statistics
        self._read_startup = read_startup
        self._live: dict[str, Stream] = {}
        self._refusing: RequestError | None = None
        self._emptied = asyncio.Event()
        self._sessions = Sessions(self._tokenizers, self._end_paused)
        self._questions = Questions(
            self._tokenizers, self._emptied.set, scheduler=scheduler, max_suspicions=MAX_SUSPICIONS
        )

    # What the server calls

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
    ) -> Stream:
        if self._refusing is not None:
            raise self._refusing
        self._check_room(num_choices, is_session=session_idle_s is not None)
        arrival_ns = time.monotonic_ns()
        generate = Generate(
            request_id=request_id,
            attempt=1,
            frontend=self.name,
            tokenizer=self._tokenizer_with_room(),
            scheduler=self._scheduler,
            prompt=prompt,
            sampling=sampling,
            arrival_ns=arrival_ns,
            cache_salt=cache_salt,
            returns_prompt=returns_prompt,
            num_choices=num_choices,
            options=options,
            priority=priority,
            tenant=tenant,
            deadline_ns=None if deadline_ms is None else arrival_ns + int(deadline_ms * 1e6),
            is_session=session_idle_s is not None,
            output_format=output_format,
            reasoning=reasoning,
            kept_markers=kept_markers,
        )
        self._tokenizers[generate.tokenizer].post(generate)
        session = None if session_idle_s is None else SessionRecord(session_idle_s, self._server.max_request_bytes)
        stream = self._live[request_id] = Stream(generate, self._close, session)
        if session is not None:
            self._sessions.open(stream)
        return stream

    def add_input(self, request_id: str, given: SessionInput | None) -> None:
        if self._refusing is not None:
            raise self._refusing
        stream = self._live.get(request_id)
        if stream is None or stream.is_aborted:
            raise no_session(request_id)
        self._sessions.give(stream, given)

    async def tokenize(self, prompt: Prompt, options: PromptOptions, *, returns_strings: bool = False) -> Tokenized:
        name = self._questions.new_id()
        answer = await self._ask(Tokenize(name, 1, self.name, prompt, options, returns_strings))
        assert isinstance(answer, Tokenized)
        return answer

    async def detokenize(self, token_ids: list[int]) -> str:
        answer = await self._ask(Detokenize(self._questions.new_id(), 1, self.name, token_ids))
        assert isinstance(answer, Detokenized)
        return answer.text

    async def explain(self, request_id: str) -> Explanation:
        answer = await self._ask(Explain(self._questions.new_id(), 1, self.name, "", request_id))
        assert isinstance(answer, Explanation)
        return answer

    async def _ask(self, question: Question) -> Answer:
        if self._refusing is not None:
            raise self._refusing
        try:
            check_frontend(len(self._questions), self.max_live_requests)
            return await self._questions.ask(question, self._tokenizer_with_room())
        except RequestError as error:
            self._when_to_retry(error)
            raise

    def _tokenizer_with_room(self) -> str:
        """In turn, one that keeps nothing; else the one that keeps the fewest messages, within a limit: the mailbox of
        one that has died is full until the supervisor says so, and what is kept for it is resumed then."""
        names = list(itertools.islice(self._turn, len(self._tokenizers)))
        next(self._turn)
        name = min(names, key=lambda name: self._tokenizers[name].num_kept)
        if self._tokenizers[name].num_kept >= _MAX_KEPT:
            raise self._when_to_retry(Overloaded("the tokenizer's mailbox is full; try again later"))
        return name

    def _check_room(self, num_choices: int, *, is_session: bool) -> None:
        """Told at once, and without sending anything."""
        try:
            check_choices(num_choices, self.max_live_requests)
            check_frontend(len(self._live) - self._sessions.num_paused, self.max_live_requests)
            if is_session:
                check_sessions(self._sessions.num_open, self._server.max_sessions)
            check_queue(self._read_statistics(), num_choices)
        except RequestError as error:
            self._when_to_retry(error)
            raise

    def _when_to_retry(self, error: RequestError) -> RequestError:
        """`error`, if it is a 429 that says no time, with the one in which the scheduler expects to have room."""
        if error.status == Overloaded.status and error.retry_after_s is None:
            error.retry_after_s = max(1, self._read_statistics().retry_after_s)
        return error

    def health(self) -> Health:
        health = self._read_health()
        if self._refusing is not None:
            return Health(is_live=health.is_live, is_ready=False, reason=self._refusing.message)
        return health

    def startup(self) -> list[ActorStart]:
        return self._read_startup()

    def scheduler_statistics(self) -> SchedulerStatistics:
        return self._read_statistics()

    def grammar_statistics(self) -> GrammarStatistics | None:
        return self._read_grammar_statistics()

    def num_live_requests(self) -> int:
        return len(self._live)

    def _close(self, stream: Stream) -> None:
        """The reader has gone. Nobody waits for a terminal event any more, so the request is forgotten here at once."""
        if self._live.get(stream.request_id) is stream:
            self._forget(stream)
            if not (stream.is_ended or stream.is_aborted):
                self._abort(stream, "client closed the stream")

    def _end_paused(self, stream: Stream, finish: Finish) -> None:
        """A session that waits for input has ended; nobody below needs to be asked."""
        self._abort(stream, "the session has ended")
        stream.finish_paused(finish)
        self._forget(stream)

    def _abort(self, stream: Stream, reason: str) -> None:
        stream.is_aborted = True
        self._tokenizers[stream.tokenizer].post(Abort(stream.request_id, stream.attempt, reason))

    def _forget(self, stream: Stream) -> None:
        self._live.pop(stream.request_id, None)
        self._sessions.forget(stream)
        if not self._live:
            self._emptied.set()

    # Messages

    def handle(self, message: TokenizerToFrontend) -> None:
        match message:
            case TextDeltas():
                for row in range(len(message.request_ids)):
                    self._take_row(message, row)
            case Refused():  # of any choice: the tokenizer has ended the others
                stream = self._live.get(message.request_id)
                error = self._when_to_retry(error_of(message))
                if stream is not None and stream.attempt == message.attempt:
                    self._fail(stream, error)
                self._questions.refuse(message.request_id, message.attempt, error)
            case Tokenized() | Detokenized() | Explanation():
                self._questions.take(message)
            case _:
                assert_never(message)

    def flush(self) -> None:
        """Readers were woken as rows arrived; nothing is left to send."""

    def _take_row(self, deltas: TextDeltas, row: int) -> None:
        stream = self._live.get(deltas.request_ids[row])
        if stream is None or stream.attempt != deltas.attempts[row]:
            return
        pause = stream.push(deltas, row)
        if pause is not None:
            self._sessions.pause(stream, pause)
        if stream.is_ended:
            self._forget(stream)

    def _fail(self, stream: Stream, error: RequestError) -> None:
        stream.fail(error)
        self._forget(stream)

    # Deaths

    def gone(self, actor: str) -> None:
        """`actor` died, and the links with it lead to its successor: what was with it waits for `settled`."""
        for stream in self._live.values():
            stream.is_lost = stream.is_lost or stream.tokenizer == actor
        self._questions.gone(actor)

    def settled(self, actors: Sequence[str], suspects: Collection[int] = (), *, has_served: bool = True) -> None:
        """Nobody has anything of these dead actors any more: the requests that were with them are resumed.

        A request may have been what they died of: with a scheduler that had `has_served`, any that it held; with a
        tokenizer the one that it had in hand (`suspects`). One that is so for the third time, without a new token
        between, ends with an error.
        """
        for stream in list(self._live.values()):
            is_of_scheduler = stream.generate.scheduler in actors
            if is_of_scheduler or (stream.is_lost and stream.tokenizer in actors):
                is_suspect = (is_of_scheduler and has_served) or mark_of(stream.request_id) in suspects
                stream.num_suspicions += is_suspect and not stream.is_paused
                self._resume(stream)
        self._questions.settled(actors, suspects, self._tokenizer_for)

    def _resume(self, stream: Stream) -> None:
        if stream.is_aborted:
            self._abort(stream, "its first abort may be lost")
            stream.finish_aborted()
            self._forget(stream)
        elif stream.num_suspicions == MAX_SUSPICIONS:
            sentence = f"the engine died {MAX_SUSPICIONS} times under this request and made no token of it between"
            self._abort(stream, sentence)
            self._fail(stream, RequestAtFault(sentence))
        else:
            tokenizer = self._next_tokenizer(stream)
            self._tokenizers[tokenizer].post(stream.resume(tokenizer))

    def _next_tokenizer(self, stream: Stream) -> str:
        """One that lives is kept, for its state of the request is replaced and not left behind."""
        return self._tokenizer_for(stream.tokenizer) if stream.is_lost else stream.tokenizer

    def _tokenizer_for(self, dead: str) -> str:
        """Instead of one that died another, if there is one, for its successor may be busy with its start."""
        tokenizer = next(self._turn)
        return next(self._turn) if tokenizer == dead else tokenizer

    # Control

    def refuse_new(self, error: RequestError) -> None:
        """From now on `submit` raises `error`."""
        self._refusing = error

    def fail_all(self, reason: str) -> None:
        """The engine is ending: every stream ends with an error event and nothing new is taken."""
        self.refuse_new(Unavailable(f"the engine is ending: {reason}"))
        for stream in list(self._live.values()):
            self._fail(stream, EngineFailure(reason))
        self._questions.fail_all(reason)

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, wait for the live requests and open questions, abort those left at the deadline and wait
        for the requests' ends."""
        self.refuse_new(Unavailable("the engine is shutting down", retry_after_s=1))
        for stream in list(self._live.values()):
            self._sessions.end_paused(stream)
        if not await self._wait_empty(timeout_s):
            self._questions.fail_all("the engine is shutting down")
            for stream in self._live.values():
                if not stream.is_aborted:
                    self._abort(stream, "the engine is shutting down")
            if not await self._wait_empty(_ABORT_GRACE_S):
                self.fail_all("the engine is shutting down")

    async def _wait_empty(self, timeout_s: float) -> bool:
        """Whether all live requests have ended within `timeout_s`, and all questions have been answered."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._live or self._questions:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            pass
        return not self._live and not self._questions

    def close(self) -> None:
        """Streams that are still there end with an error; closing one of them later sends nothing."""
        self.fail_all("the process is ending")
        self.faults.cancel()
        for sender in self._senders():
            sender.close()
        self.inbox.close()

    def _senders(self) -> Sequence[Sender[FrontendToTokenizer]]:
        return list(self._tokenizers.values())


_MAX_KEPT = 64
"""New requests wait in the frontend for a tokenizer's mailbox only behind fewer kept messages than this."""
_ABORT_GRACE_S = 2.0
"""How long aborted requests may take to come back with their terminal event before they are ended with an error."""
