"""From the deltas of a request to whole choices, for an answer that is not streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ..actors.frontend_api import Delta
from ..errors import EngineFailure
from ..mailbox.messages.requests import Finish, PromptDetails, ReasoningState, TokenText
from .chunk_sequence import finish_error, is_refusal
from .request_timing import RequestTiming


async def collect(stream: AsyncIterator[Delta], num_choices: int, timing: RequestTiming) -> list[Delta]:
    """All deltas of each choice as one, which has `finish`; in the order of the choices. Raises RequestError."""
    choices = [_Choice(index) for index in range(num_choices)]
    num_left = num_choices
    async for delta in stream:
        if is_refusal(delta):
            raise finish_error(delta)
        timing.observe(delta)
        choices[delta.choice].add(delta)
        if delta.finish is not None:
            if delta.finish.reason == "error":
                raise finish_error(delta)
            num_left -= 1
            if not num_left:
                return [choice.whole() for choice in choices]
    raise unfinished()


class _Choice:
    """The deltas of one choice so far."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenText] | None = None
        self._prompt: PromptDetails | None = None
        self._finish: Finish | None = None
        self._reasoning: ReasoningState | None = None

    def add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs.extend(delta.logprobs)
        if delta.prompt is not None:
            self._prompt = delta.prompt
        self._finish = delta.finish
        self._reasoning = self._reasoning or delta.reasoning

    def whole(self) -> Delta:
        return Delta(
            self._index,
            0,
            self._token_ids,
            "".join(self._texts),
            self._finish,
            self._logprobs,
            self._prompt,
            reasoning=self._reasoning,
        )


def unfinished() -> EngineFailure:
    """For a stream that is over although a choice has not ended."""
    return EngineFailure("the engine ended the stream without a finish")
