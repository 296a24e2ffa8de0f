"""One live request as the frontend keeps it: what it has of each choice, and what its reader has not taken yet."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgspec

from ..errors import ProtocolViolation, RequestError
from ..mailbox.messages.requests import (
    Delivered,
    Finish,
    Generate,
    PromptDetails,
    ReasoningState,
    Resume,
    SessionInput,
    TextDeltas,
    TokenText,
    Usage,
)
from .frontend_api import Delta
from .session_record import SessionRecord


class _Choice:
    """The record of a choice. What is unread grows in place and becomes a `Delta` when it is read: O(new) a row."""

    __slots__ = (
        "_logprobs",
        "_prompt",
        "_texts",
        "finish",
        "first_position",
        "index",
        "is_unread",
        "num_chars",
        "num_read",
        "pause",
        "reasoning",
        "token_ids",
    )

    def __init__(self, index: int, first_position: int = 0) -> None:
        self.index = index
        self.first_position = first_position
        """Output index of the first token: each turn of a session has a record of its own."""
        self.token_ids = array("i")
        """All that were delivered, kept until the end."""
        self.pause: Finish | None = None
        """The turn has ended so."""
        self.num_chars = 0
        self.finish: Finish | None = None
        self.reasoning: ReasoningState | None = None
        """What its first row has told, until it is read."""
        self.is_unread = False
        self.num_read = 0
        """Tokens that the reader has taken."""
        self._texts: list[str] = []
        self._logprobs: list[TokenText] | None = None
        self._prompt: PromptDetails | None = None

    def add(
        self,
        token_ids: list[int],
        text: str,
        finish: Finish | None,
        logprobs: list[TokenText] | None,
        prompt: PromptDetails | None,
    ) -> None:
        self.token_ids.extend(token_ids)
        self.num_chars += len(text)
        self._texts.append(text)
        self.finish = finish
        if logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += logprobs
        if prompt is not None:
            self._prompt = prompt

    @property
    def next_position(self) -> int:
        """Output index of the token that comes next."""
        return self.first_position + len(self.token_ids)

    def take(self) -> Delta:
        """What the reader has not seen, as one delta; it counts as read from now on."""
        delta = Delta(
            choice=self.index,
            position=self.first_position + self.num_read,
            token_ids=self.token_ids[self.num_read :].tolist(),
            text="".join(self._texts),
            finish=self.finish,
            logprobs=self._logprobs,
            prompt=self._prompt,
            pause=self.pause,
            reasoning=self.reasoning,
        )
        self.reasoning = None
        self.num_read = len(self.token_ids)
        self._texts = []
        self._logprobs = self._prompt = None
        return delta


class Stream:
    """Implements `RequestStream`. Unread deltas of a choice merge, so it holds at most one for each."""

    def __init__(
        self, generate: Generate, on_close: Callable[[Stream], None], session: SessionRecord | None = None
    ) -> None:
        self.request_id = generate.request_id
        self.session = session
        """Of a streaming session, which has one choice."""
        self.generate = generate
        """As it was sent last: `attempt`, `tokenizer` and `scheduler` are those of the current attempt."""
        self.is_lost = False
        """Its tokenizer died; it is resumed when the death is settled."""
        self.is_aborted = False
        """The frontend itself has aborted it; its terminal events are under way."""
        self.num_suspicions = 0
        """Deaths since its last new token that it may have been the cause of."""
        self.is_ended = False
        """All terminal events or an error have arrived; the reader may not have taken them yet."""
        self._on_close = on_close
        self._choices = [_Choice(index) for index in range(generate.num_choices)]
        self._num_live = self._num_unread_ends = generate.num_choices
        self._unread: deque[_Choice] = deque()
        self._error: RequestError | None = None
        self._is_read_out = False
        self._arrived = asyncio.Event()
        """Something is there to be read."""

    @property
    def attempt(self) -> int:
        return self.generate.attempt

    @property
    def tokenizer(self) -> str:
        return self.generate.tokenizer

    @property
    def is_paused(self) -> bool:
        """A session that waits for input: nobody works on it."""
        return self.session is not None and self.session.paused is not None

    # Reader

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if not self._is_read_out:
            await self._arrived.wait()
        if self._is_read_out:
            raise StopAsyncIteration
        if not self._unread:
            assert self._error is not None, "woken without a delta or an error"
            self._is_read_out = True
            self._arrived.clear()
            raise self._error
        choice = self._unread.popleft()
        choice.is_unread = False
        delta = choice.take()
        self._num_unread_ends -= delta.finish is not None
        self._is_read_out = self._num_unread_ends == 0
        if not self._unread and self._error is None:
            self._arrived.clear()
        return delta

    def close(self) -> None:
        self._is_read_out = True
        self._unread.clear()
        self._arrived.set()  # a task may be waiting for a delta
        self._on_close(self)

    # Frontend

    def push(self, deltas: TextDeltas, row: int) -> Finish | None:
        """Take a row of the current attempt. What it has already is dropped; ProtocolViolation for a gap, or for a row
        of which it has a part, since text cannot be cut at tokens. Returns how a session's turn ended with it."""
        choice = self._choices[deltas.choices[row]]
        if self.is_ended or choice.finish is not None:
            return None
        position, token_ids = deltas.positions[row], deltas.token_ids[row]
        finish = deltas.finishes.get(row)
        num_tokens = choice.next_position
        if token_ids and finish is None and position + len(token_ids) <= num_tokens:
            return None
        if position != num_tokens:
            raise ProtocolViolation(
                f"{self.request_id} choice {choice.index}: delta at {position}, the frontend has {num_tokens}"
            )
        if token_ids:
            self.num_suspicions = 0
        choice.pause = deltas.pauses.get(row) if finish is None else None
        choice.reasoning = deltas.reasoning_states.get(row, choice.reasoning)
        self._add(choice, token_ids, deltas.texts[row], finish, deltas.logprobs.get(row), deltas.prompts.get(row))
        return choice.pause

    def pause(self, finish: Finish) -> SessionInput | None:
        """A session's turn has ended with what was pushed last. Returns the input that goes in now."""
        (ended,) = self._choices
        self._choices = [_Choice(ended.index, ended.next_position)]
        assert self.session is not None
        return self.session.pause(ended.token_ids, finish)

    def fail(self, error: RequestError) -> None:
        """End with an error, behind the deltas that are still unread."""
        if not self.is_ended:
            self.is_ended, self._error = True, error
            self._arrived.set()

    def finish_aborted(self) -> None:
        """End every live choice as aborted. The prompt's tokens are not in the usage: the tokenizer knew them."""
        for choice in self._choices:
            if choice.finish is None:
                finish = Finish("abort", Usage(0, len(choice.token_ids), 0))
                self._add(choice, [], "", finish, None, None)

    def finish_paused(self, finish: Finish) -> None:
        """End a session that waits for input."""
        self._add(self._choices[0], [], "", finish, None, None)

    def resume(self, tokenizer: str) -> Resume:
        """Begin the next attempt, by way of `tokenizer`; what is still to come of the last one is void."""
        self.generate = msgspec.structs.replace(self.generate, attempt=self.attempt + 1, tokenizer=tokenizer)
        self.is_lost = False
        live = [choice for choice in self._choices if choice.finish is None]
        delivered = [Delivered(c.index, c.token_ids.tolist(), c.num_chars) for c in live]
        session = self.session
        if session is None:
            return Resume(self.generate, delivered)
        (turn,) = delivered
        whole = Delivered(turn.choice, session.token_ids.tolist() + turn.token_ids, turn.num_chars)
        return Resume(self.generate, [whole], list(session.pauses), list(session.inputs))

    def _add(
        self,
        choice: _Choice,
        token_ids: list[int],
        text: str,
        finish: Finish | None,
        logprobs: list[TokenText] | None,
        prompt: PromptDetails | None,
    ) -> None:
        choice.add(token_ids, text, finish, logprobs, prompt)
        if finish is not None:
            self._num_live -= 1
            self.is_ended = self._num_live == 0
        if not choice.is_unread:
            choice.is_unread = True
            self._unread.append(choice)
        self._arrived.set()
