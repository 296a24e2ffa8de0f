"""How deltas become the objects of an endpoint: one format for chat, one for completions, chosen once a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, UnsetType

from ..actors.frontend_api import Delta
from ..mailbox.messages.requests import Finish, PromptDetails
from .answer_objects import (
    Answer,
    ChatChoice,
    ChatChunkChoice,
    ChunkDelta,
    CompletionChoice,
    Message,
    UsageObject,
    chat_logprobs,
    completion_logprobs,
    usage_object,
)


class AnswerFormat(Protocol):
    """One request's answer: `opening` and `chunk` for a stream, `whole` for deltas that hold everything."""

    def opening(self, delta: Delta, *, is_first: bool) -> Answer | None:
        """The chunk before a choice's first delta, if the endpoint has one; `is_first`: of all choices."""
        ...

    def chunk(self, delta: Delta) -> Answer: ...

    def usage_chunk(self, finishes: Sequence[Finish]) -> Answer: ...

    def whole(self, deltas: Sequence[Delta]) -> Answer: ...


class ChatFormat:
    """chat.completion and chat.completion.chunk. `created`: seconds since 1970."""

    def __init__(
        self, request_id: str, model: str, created: int, *, returns_token_ids: bool, includes_usage: bool
    ) -> None:
        self._id, self._model, self._created = request_id, model, created
        self._returns_token_ids = returns_token_ids
        self._chunk_usage: UnsetType | None = None if includes_usage else UNSET

    def opening(self, delta: Delta, *, is_first: bool) -> Answer:
        """The role; in the answer's first chunk the prompt's ids, if they were asked for."""
        choices = [ChatChunkChoice(ChunkDelta(role="assistant", content=""), index=delta.choice)]
        prompt_token_ids = _ids_or_unset(delta.prompt) if is_first else UNSET
        return self._answer_chunk(choices, self._chunk_usage, prompt_token_ids)

    def chunk(self, delta: Delta) -> Answer:
        """The delta's text; with the finish reason if it is the last."""
        finish = delta.finish
        content = ChunkDelta(content=delta.text) if delta.text or finish is None else ChunkDelta()
        choice = ChatChunkChoice(
            content,
            chat_logprobs(delta.logprobs),
            None if finish is None else finish.reason,
            index=delta.choice,
            stop_reason=None if finish is None else finish.stop_reason,
            token_ids=delta.token_ids if self._returns_token_ids else UNSET,
        )
        return self._answer_chunk([choice], self._chunk_usage)

    def usage_chunk(self, finishes: Sequence[Finish]) -> Answer:
        """After the last choice; how each ended, in order."""
        return self._answer_chunk([], usage_object(finishes))

    def whole(self, deltas: Sequence[Delta]) -> Answer:
        """The answer that is not streamed; one delta a choice, each with `finish`."""
        return Answer(
            self._id,
            "chat.completion",
            self._created,
            self._model,
            [self._whole_choice(delta) for delta in deltas],
            usage_object(_finishes(deltas)),
            _ids_or_unset(deltas[0].prompt),
        )

    def _whole_choice(self, delta: Delta) -> ChatChoice:
        assert delta.finish is not None
        return ChatChoice(
            Message(delta.text),
            chat_logprobs(delta.logprobs),
            delta.finish.reason,
            index=delta.choice,
            stop_reason=delta.finish.stop_reason,
            token_ids=delta.token_ids if self._returns_token_ids else UNSET,
        )

    def _answer_chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: UsageObject | UnsetType | None,
        prompt_token_ids: list[int] | UnsetType = UNSET,
    ) -> Answer:
        return Answer(self._id, "chat.completion.chunk", self._created, self._model, choices, usage, prompt_token_ids)


class CompletionFormat:
    """text_completion, whole and in chunks. `created`: seconds since 1970."""

    def __init__(
        self, request_id: str, model: str, created: int, *, returns_token_ids: bool, includes_usage: bool
    ) -> None:
        self._id, self._model, self._created = request_id, model, created
        self._returns_token_ids = returns_token_ids
        self._chunk_usage: UnsetType | None = None if includes_usage else UNSET
        self._num_token_chars: Counter[int] = Counter()
        """By choice: characters of the tokens that were written so far, which is the next text_offset."""

    def opening(self, delta: Delta, *, is_first: bool) -> None:
        """A completions stream has no role."""

    def chunk(self, delta: Delta) -> Answer:
        """The delta's text; with the finish reason if it is the last."""
        return self._answer([self._choice(delta)], self._chunk_usage)

    def usage_chunk(self, finishes: Sequence[Finish]) -> Answer:
        """After the last choice; how each ended, in order."""
        return self._answer([], usage_object(finishes))

    def whole(self, deltas: Sequence[Delta]) -> Answer:
        """The answer that is not streamed; one delta a choice, each with `finish`."""
        return self._answer([self._choice(delta) for delta in deltas], usage_object(_finishes(deltas)))

    def _choice(self, delta: Delta) -> CompletionChoice:
        finish = delta.finish
        logprobs = completion_logprobs(delta.logprobs, self._num_token_chars[delta.choice])
        if delta.logprobs:
            self._num_token_chars[delta.choice] += sum(len(token.text) for token in delta.logprobs)
        return CompletionChoice(
            delta.text,
            logprobs,
            None if finish is None else finish.reason,
            index=delta.choice,
            stop_reason=None if finish is None else finish.stop_reason,
            token_ids=delta.token_ids if self._returns_token_ids else UNSET,
            prompt_token_ids=_ids_or_unset(delta.prompt),
        )

    def _answer(self, choices: list[CompletionChoice], usage: UsageObject | UnsetType | None) -> Answer:
        return Answer(self._id, "text_completion", self._created, self._model, choices, usage)


def _finishes(deltas: Sequence[Delta]) -> list[Finish]:
    return [delta.finish for delta in deltas if delta.finish is not None]


def _ids_or_unset(prompt: PromptDetails | None) -> list[int] | UnsetType:
    return UNSET if prompt is None else prompt.token_ids
