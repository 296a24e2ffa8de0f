"""Questions, as a frontend asks them: each waits for one answer, of whichever tokenizer lives.

None has a state that could be lost: one that was with an actor that died is asked again. An `Explain` goes on from the
tokenizer to the scheduler, so it is asked again after the death of either.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping

import msgspec

from ..errors import EngineFailure, RequestAtFault, RequestError
from ..mailbox.messages.requests import Abort, Answer, Explain, FrontendToTokenizer, Question
from ..shm_queue import mark_of
from .sender import Sender


class _Open:
    """One question that has no answer yet."""

    __slots__ = ("answer", "is_lost", "num_suspicions", "question", "tokenizer")

    def __init__(self, question: Question, tokenizer: str) -> None:
        self.question = question
        """As it was sent last."""
        self.tokenizer = tokenizer
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        """Its tokenizer died; it is asked again when the death is settled."""
        self.num_suspicions = 0
        """Tokenizers that died with it in hand."""


class Questions:
    """The open questions of a frontend, by name; what leaves `ask`, in whatever way, is in the table no more."""

    def __init__(
        self,
        tokenizers: Mapping[str, Sender[FrontendToTokenizer]],
        on_empty: Callable[[], None],
        *,
        scheduler: str,
        max_suspicions: int,
    ) -> None:
        """`on_empty` is called each time the last open question has left; one that `max_suspicions` tokenizers died
        of is not asked again."""
        self._tokenizers = tokenizers
        self._scheduler = scheduler
        self._on_empty = on_empty
        self._max_suspicions = max_suspicions
        self._open: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def new_id(self) -> str:
        """A name that no other question or request has, nor had one of this frontend's earlier life."""
        return f"question-{uuid.uuid4().hex}"

    async def ask(self, question: Question, tokenizer: str) -> Answer:
        """Send the question and wait. Raises RequestError. A caller that is cancelled withdraws it."""
        request_id = question.request_id
        entry = self._open[request_id] = _Open(_by_way_of(tokenizer, question), tokenizer)
        self._tokenizers[tokenizer].post(entry.question)
        try:
            return await entry.answer
        finally:
            if self._remove(request_id) is not None:
                abort = Abort(request_id, entry.question.attempt, "nobody waits for the answer")
                self._tokenizers[entry.tokenizer].post(abort)

    def take(self, answer: Answer) -> None:
        """An answer of another attempt is dropped."""
        entry = self._find(answer.request_id, answer.attempt)
        if entry is not None:
            self._remove(answer.request_id)
            if not entry.answer.done():  # its caller may have been cancelled this very moment
                entry.answer.set_result(answer)

    def refuse(self, request_id: str, attempt: int, error: RequestError) -> None:
        """End a question with an error, if it is an open one of that attempt."""
        if self._find(request_id, attempt) is not None:
            self._fail(request_id, error)

    def gone(self, tokenizer: str) -> None:
        """What was asked of it waits for `settled`."""
        for entry in self._open.values():
            entry.is_lost = entry.is_lost or entry.tokenizer == tokenizer

    def settled(self, actors: Collection[str], suspects: Collection[int], tokenizer_for: Callable[[str], str]) -> None:
        """Nobody has anything of these dead actors any more: what was asked of them is asked again."""
        for request_id, entry in list(self._open.items()):
            if not self._was_with(actors, entry):
                continue
            entry.num_suspicions += mark_of(request_id) in suspects
            if entry.num_suspicions == self._max_suspicions:
                sentence = f"the tokenizer died {self._max_suspicions} times of this request"
                self._fail(request_id, RequestAtFault(sentence))
                continue
            was_lost, entry.is_lost = entry.is_lost, False
            entry.tokenizer = tokenizer_for(entry.tokenizer) if was_lost else entry.tokenizer
            again = msgspec.structs.replace(entry.question, attempt=entry.question.attempt + 1)
            entry.question = _by_way_of(entry.tokenizer, again)
            self._tokenizers[entry.tokenizer].post(entry.question)

    def fail_all(self, reason: str) -> None:
        """The engine is ending."""
        for request_id in list(self._open):
            self._fail(request_id, EngineFailure(reason))

    def _was_with(self, actors: Collection[str], entry: _Open) -> bool:
        """One whose tokenizer has died as well waits until that, too, is settled."""
        if entry.is_lost:
            return entry.tokenizer in actors
        return isinstance(entry.question, Explain) and self._scheduler in actors

    def _find(self, request_id: str, attempt: int) -> _Open | None:
        entry = self._open.get(request_id)
        return entry if entry is not None and entry.question.attempt == attempt else None

    def _fail(self, request_id: str, error: RequestError) -> None:
        entry = self._remove(request_id)
        if entry is not None and not entry.answer.done():
            entry.answer.set_exception(error)

    def _remove(self, request_id: str) -> _Open | None:
        entry = self._open.pop(request_id, None)
        if entry is not None and not self._open:
            self._on_empty()
        return entry


def _by_way_of(tokenizer: str, question: Question) -> Question:
    """The scheduler answers an `Explain` to the tokenizer that is named in it."""
    return msgspec.structs.replace(question, tokenizer=tokenizer) if isinstance(question, Explain) else question
