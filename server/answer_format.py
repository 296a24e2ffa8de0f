"""How deltas become the objects of an endpoint: one format for chat, in `chat_format.py`, one for completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from ..actors.frontend_api import Delta
from ..mailbox.messages.requests import Finish, PromptDetails, TokenText
from .answer_objects import (
    Answer,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
    UsageObject,
    usage_object,
)
from .chunk_usage import ChunkUsage
from .generation_request import AnswerOptions
from .token_logprobs import completion_logprobs, echoed_tokens, named_by_id, prompt_logprobs


class AnswerFormat(Protocol):
    """One request's answer: `opening` and `chunk` for a stream, `whole` for deltas that hold everything."""

    def opening(self, delta: Delta, *, is_first: bool) -> Answer | None:
        """The chunk before a choice's first delta, if the endpoint has one; `is_first`: of all choices."""
        ...

    def chunk(self, delta: Delta) -> Answer | None:
        """None: there is nothing to tell."""
        ...

    def usage_chunk(self, finishes: Sequence[Finish]) -> Answer: ...

    def whole(self, deltas: Sequence[Delta]) -> Answer: ...


class CompletionFormat:
    """text_completion, whole and in chunks. `created`: seconds since 1970."""

    def __init__(self, request_id: str, model: str, created: int, options: AnswerOptions) -> None:
        self._id, self._model, self._created = request_id, model, created
        self._options = options
        self._usage = ChunkUsage(options)
        self._num_token_chars: Counter[int] = Counter()
        """By choice: characters of the tokens that were written so far, which is the next text_offset."""

    def opening(self, delta: Delta, *, is_first: bool) -> None:
        """A completions stream has no role."""

    def chunk(self, delta: Delta) -> Answer:
        """The delta's text; with the finish reason if it is the last, or ends a session's turn, then also its usage."""
        if delta.pause is not None:
            ended = self._choice(msgspec.structs.replace(delta, finish=delta.pause))
            return msgspec.structs.replace(self._answer([ended], usage_object([delta.pause], 1)), paused=True)
        return self._answer([self._choice(delta)], self._usage.after(delta))

    def usage_chunk(self, finishes: Sequence[Finish]) -> Answer:
        """After the last choice; how each ended, in order."""
        return self._answer([], usage_object(finishes, self._options.num_choices))

    def whole(self, deltas: Sequence[Delta]) -> Answer:
        """The answer that is not streamed; one delta a choice, each with `finish`."""
        usage = usage_object(finishes_of(deltas), self._options.num_choices)
        return self._answer([self._choice(delta) for delta in deltas], usage)

    def _choice(self, delta: Delta) -> CompletionChoice:
        finish, prompt, options = delta.finish, delta.prompt, self._options
        echo = prompt.text if prompt is not None and options.echoes_prompt else ""
        return CompletionChoice(
            echo + delta.text,
            self._logprobs(delta),
            None if finish is None else finish.reason,
            index=delta.choice,
            stop_reason=None if finish is None else finish.stop_reason,
            token_ids=delta.token_ids if options.returns_token_ids else UNSET,
            prompt_token_ids=prompt_token_ids_of(prompt, options),
            prompt_logprobs=prompt_logprobs_of(prompt, options),
        )

    def _logprobs(self, delta: Delta) -> CompletionLogprobs | None:
        """Of an echoed prompt, then of the delta; None: the request asked for none, or there are no tokens."""
        echoed: list[TokenText] = []
        token_ids: list[int] = []
        if delta.prompt is not None and self._options.echo_logprobs is not None:
            echoed = echoed_tokens(delta.prompt, self._options.echo_logprobs)
            token_ids = delta.prompt.token_ids
        if delta.logprobs is None and not echoed:
            return None
        tokens = echoed + (delta.logprobs or [])
        lengths = [len(token.text) for token in tokens]
        if self._options.names_tokens_by_id:
            tokens = named_by_id(tokens, token_ids + delta.token_ids)
        logprobs = completion_logprobs(tokens, lengths, self._num_token_chars[delta.choice])
        self._num_token_chars[delta.choice] += sum(lengths)
        if echoed:
            logprobs.token_logprobs[0] = logprobs.top_logprobs[0] = None
        return logprobs

    def _answer(self, choices: list[CompletionChoice], usage: UsageObject | UnsetType | None) -> Answer:
        return Answer(self._id, "text_completion", self._created, self._model, choices, usage)


def finishes_of(deltas: Sequence[Delta]) -> list[Finish]:
    """How each ended."""
    return [delta.finish for delta in deltas if delta.finish is not None]


def prompt_token_ids_of(prompt: PromptDetails | None, options: AnswerOptions) -> list[int] | UnsetType:
    """As far as the request asked for them."""
    return prompt.token_ids if prompt is not None and options.returns_token_ids else UNSET


def prompt_logprobs_of(prompt: PromptDetails | None, options: AnswerOptions) -> PromptLogprobs | UnsetType:
    """As far as the request asked for them."""
    if prompt is None or options.prompt_logprobs is None:
        return UNSET
    return prompt_logprobs(prompt, options.prompt_logprobs)
