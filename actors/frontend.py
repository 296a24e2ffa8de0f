"""The frontend actor: holds each live request and what it has delivered, and hands text to whoever reads the stream.

It knows no HTTP: `server/` builds its app over this class, through the protocol in `frontend_api.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import assert_never

from ..errors import EngineFailure, Overloaded, ProtocolViolation, RequestError, Unavailable, WouldBlock
from ..mailbox import Inbox
from ..mailbox.messages.requests import (
    Abort,
    FrontendToTokenizer,
    Generate,
    Prompt,
    Refused,
    TextDeltas,
    TokenizerToFrontend,
)
from ..mailbox.messages.sampling import SamplingParams
from ..scheduling.statistics import SchedulerStatistics
from .faults import Faults
from .frontend_api import ActorStart, Delta, Health
from .sender import Sender


class Stream:
    """One live request as its reader sees it (`RequestStream`): unread deltas merge, so it holds at most one."""

    def __init__(self, generate: Generate, on_close: Callable[[Stream], None]) -> None:
        self.request_id = generate.request_id
        self.attempt = generate.attempt
        self.tokenizer = generate.tokenizer
        self.num_tokens = 0
        """Tokens received so far: the position of the next."""
        self.is_ended = False
        """A terminal event or an error has arrived; the reader may not have taken it yet."""
        self._on_close = on_close
        self._unread: Delta | None = None
        self._error: RequestError | None = None
        self._is_read_out = False
        self._arrived = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if self._is_read_out:
            raise StopAsyncIteration
        await self._arrived.wait()
        self._arrived.clear()
        if self._is_read_out:
            raise StopAsyncIteration
        if self._unread is not None:
            delta, self._unread = self._unread, None
            self._is_read_out = delta.finish is not None
            if self._error is not None:
                self._arrived.set()
            return delta
        self._is_read_out = True
        assert self._error is not None, "woken without a delta or an error"
        raise self._error

    def push(self, delta: Delta) -> None:
        """Add what arrived. Positions that it has are the caller's to drop."""
        self.num_tokens += len(delta.token_ids)
        self._unread = delta if self._unread is None else _merge(self._unread, delta)
        self.is_ended = delta.finish is not None
        self._arrived.set()

    def fail(self, error: RequestError) -> None:
        """End with an error, behind the deltas that are still unread."""
        if not self.is_ended:
            self.is_ended, self._error = True, error
            self._arrived.set()

    def close(self) -> None:
        self._is_read_out = True
        self._unread = None
        self._arrived.set()  # a task may be waiting for a delta
        self._on_close(self)


def _merge(first: Delta, second: Delta) -> Delta:
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = [*(first.logprobs or ()), *(second.logprobs or ())]
    prompt = first.prompt_token_ids if first.prompt_token_ids is not None else second.prompt_token_ids
    return Delta(
        choice=first.choice,
        position=first.position,
        token_ids=first.token_ids + second.token_ids,
        text=first.text + second.text,
        finish=second.finish,
        logprobs=logprobs,
        prompt_token_ids=prompt,
    )


class Frontend:
    """Implements `FrontendAPI`. `read_health`, `read_statistics` and `read_startup` read the progress page."""

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
        scheduler: str,
        read_health: Callable[[], Health],
        read_statistics: Callable[[], SchedulerStatistics],
        read_startup: Callable[[], list[ActorStart]],
    ) -> None:
        self.name = name
        self.inbox = inbox
        self.faults = faults
        self.model_name = model_name
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self._tokenizers = dict(tokenizers)
        self._turn = itertools.cycle(self._tokenizers)
        self._scheduler = scheduler
        self._read_health = read_health
        self._read_statistics = read_statistics
        self._read_startup = read_startup
        self._live: dict[str, Stream] = {}
        self._refusing: RequestError | None = None
        self._emptied = asyncio.Event()

    # What the server calls

    def submit(
        self,
        request_id: str,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        cache_salt: str = "",
        returns_prompt: bool = False,
    ) -> Stream:
        if self._refusing is not None:
            raise self._refusing
        tokenizer = next(self._turn)
        generate = Generate(
            request_id=request_id,
            attempt=1,
            frontend=self.name,
            tokenizer=tokenizer,
            scheduler=self._scheduler,
            prompt=prompt,
            sampling=sampling,
            arrival_ns=time.monotonic_ns(),
            cache_salt=cache_salt,
            returns_prompt=returns_prompt,
        )
        try:
            self._tokenizers[tokenizer].send_nowait(generate)
        except WouldBlock:
            raise Overloaded("the tokenizer's mailbox is full; try again in a second", retry_after_s=1) from None
        stream = self._live[request_id] = Stream(generate, self._close)
        return stream

    def health(self) -> Health:
        health = self._read_health()
        if self._refusing is not None:
            return Health(is_live=health.is_live, is_ready=False, reason=self._refusing.message)
        return health

    def startup(self) -> list[ActorStart]:
        return self._read_startup()

    def scheduler_statistics(self) -> SchedulerStatistics:
        return self._read_statistics()

    def num_live_requests(self) -> int:
        return len(self._live)

    def _close(self, stream: Stream) -> None:
        """The reader has gone. Nobody waits for a terminal event any more, so the request is forgotten here at once."""
        if self._live.get(stream.request_id) is stream:
            self._forget(stream)
            if not stream.is_ended:
                self._abort(stream, "client closed the stream")

    def _abort(self, stream: Stream, reason: str) -> None:
        self._tokenizers[stream.tokenizer].post(Abort(stream.request_id, stream.attempt, reason))

    def _forget(self, stream: Stream) -> None:
        self._live.pop(stream.request_id, None)
        if not self._live:
            self._emptied.set()

    # Messages

    def handle(self, message: TokenizerToFrontend) -> None:
        match message:
            case TextDeltas():
                for row in range(len(message.request_ids)):
                    self._take_row(message, row)
            case Refused():
                stream = self._live.get(message.request_id)
                if stream is not None and stream.attempt == message.attempt:
                    stream.fail(_error_of(message))
                    self._forget(stream)
            case _:
                assert_never(message)

    def flush(self) -> None:
        """Readers were woken as rows arrived; nothing is left to send."""

    def _take_row(self, deltas: TextDeltas, row: int) -> None:
        stream = self._live.get(deltas.request_ids[row])
        if stream is None or stream.attempt != deltas.attempts[row] or stream.is_ended:
            return
        position, count = deltas.positions[row], len(deltas.token_ids[row])
        finish = deltas.finishes.get(row)
        if count and finish is None and position + count <= stream.num_tokens:
            return  # it has all of them
        if position != stream.num_tokens:  # a gap, or text that cannot be cut at the tokens it has
            raise ProtocolViolation(f"{stream.request_id}: delta at {position}, the frontend has {stream.num_tokens}")
        delta = Delta(
            choice=deltas.choices[row],
            position=position,
            token_ids=deltas.token_ids[row],
            text=deltas.texts[row],
            finish=finish,
            logprobs=deltas.logprobs.get(row),
            prompt_token_ids=deltas.prompts.get(row),
        )
        stream.push(delta)
        if finish is not None:
            self._forget(stream)

    # Control

    def refuse_new(self, error: RequestError) -> None:
        """From now on `submit` raises `error`."""
        self._refusing = error

    def fail_all(self, reason: str) -> None:
        """The engine is ending: every stream ends with an error event and nothing new is taken."""
        self.refuse_new(Unavailable(f"the engine is ending: {reason}"))
        for stream in list(self._live.values()):
            stream.fail(EngineFailure(reason))
            self._forget(stream)

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, wait for the live requests, abort those left at the deadline and wait for their ends."""
        self.refuse_new(Unavailable("the engine is shutting down", retry_after_s=1))
        if not await self._wait_empty(timeout_s):
            for stream in self._live.values():
                self._abort(stream, "the engine is shutting down")
            if not await self._wait_empty(_ABORT_GRACE_S):
                self.fail_all("the engine is shutting down")

    async def _wait_empty(self, timeout_s: float) -> bool:
        """Whether all live requests have ended within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._live:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            pass
        return not self._live

    def close(self) -> None:
        """Streams that are still there end with an error; closing one of them later sends nothing."""
        self.fail_all("the process is ending")
        self.faults.cancel()
        for sender in self._senders():
            sender.close()
        self.inbox.close()

    def _senders(self) -> Sequence[Sender[FrontendToTokenizer]]:
        return list(self._tokenizers.values())


_ABORT_GRACE_S = 2.0
"""How long aborted requests may take to come back with their terminal event before they are ended with an error."""


def _error_of(refused: Refused) -> RequestError:
    return RequestError(
        refused.message,
        param=refused.param,
        code=refused.code,
        retry_after_s=refused.retry_after_s,
        status=refused.status,
        type=refused.error_type,
    )
