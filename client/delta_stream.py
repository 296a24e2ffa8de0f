"""From the bytes of an event stream to deltas, and the stream of them that callers iterate."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType

import aiohttp
import msgspec

from ..errors import MalformedAnswer, StreamCut
from .deltas import Answer, CallPiece, ClientDelta, PromptLogprobs
from .error_answers import error_from_event
from .json_body import read_json
from .sse import EventParser
from .whole_answers import assemble
from .wire import WireAnswer, WireChoice

_decoder = msgspec.json.Decoder(WireAnswer)


class StreamHead:
    """What the head of an answer says; filled in when it comes."""

    def __init__(self) -> None:
        self.request_id = ""
        """The header X-Request-Id: what the caller gave, or the server's own."""
        self.ignored_fields: tuple[str, ...] = ()
        self.model = ""


class DeltaStream:
    """The deltas of one request, as they come; the request is sent with the first `anext`.

    Leaving the iteration, `aclose()`, the end of an `async with` block and cancellation close the connection, which
    aborts the request.
    """

    def __init__(self, deltas: AsyncGenerator[ClientDelta, None], head: StreamHead) -> None:
        self._deltas = deltas
        self.head = head

    def __aiter__(self) -> DeltaStream:
        return self

    async def __anext__(self) -> ClientDelta:
        return await anext(self._deltas)

    async def aclose(self) -> None:
        """Abort the request unless it has ended; may be called twice."""
        await self._deltas.aclose()

    async def __aenter__(self) -> DeltaStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def answer(self) -> Answer:
        """What is still to come, as one answer. Raises as the iteration does."""
        deltas = [delta async for delta in self]
        return assemble(deltas, self.head.model, self.head.ignored_fields)


async def deltas_of(
    content: aiohttp.StreamReader, num_choices: int, head: StreamHead
) -> AsyncGenerator[ClientDelta, None]:
    """Deltas of all choices as they come; the last one waits for the usage, so that it has both.

    Raises the error of an error event; StreamCut if the stream ends before each choice has a finish reason and [DONE]
    has come; MalformedAnswer for an event that cannot be read.
    """
    parser = EventParser()
    prompt = _Prompt()
    last: ClientDelta | None = None
    finished: set[int] = set()
    async for received in content.iter_any():
        for event in parser.feed(received):
            if event == b"[DONE]":
                if last is None:
                    raise StreamCut("the stream ended before every choice had a finish reason")
                yield last
                return
            chunk = read_json(event, _decoder, "an event of the stream")
            if chunk.error is not None:
                raise error_from_event(chunk.error)
            head.model = chunk.model or head.model
            prompt.see(chunk)
            if not chunk.choices and last is not None and chunk.usage is not None:
                last = msgspec.structs.replace(last, usage=chunk.usage)
            for choice in chunk.choices:
                delta = _delta(chunk, choice, prompt)
                if delta is None:
                    continue
                if delta.finish_reason is not None and not delta.is_paused:
                    finished.add(delta.choice)
                if len(finished) < num_choices:
                    yield delta
                    continue
                if last is not None:  # the server has more choices than were asked for
                    yield last
                last = delta
    raise StreamCut("the stream was cut off before its end")


class _Prompt:
    """What chunks say of the prompt beside their choices: for the first delta that comes."""

    def __init__(self) -> None:
        self._token_ids: list[int] | None = None
        self._logprobs: PromptLogprobs | None = None

    def see(self, chunk: WireAnswer) -> None:
        self._token_ids = chunk.prompt_token_ids or self._token_ids
        self._logprobs = chunk.prompt_logprobs or self._logprobs

    def take(self) -> tuple[list[int] | None, PromptLogprobs | None]:
        taken = self._token_ids, self._logprobs
        self._token_ids = self._logprobs = None
        return taken


def _delta(chunk: WireAnswer, choice: WireChoice, prompt: _Prompt) -> ClientDelta | None:
    """None for a chunk that adds nothing, such as the one with the role."""
    text = choice.whole_text()
    says = text or choice.reasoning or choice.calls
    has_content = says or choice.token_ids or choice.logprobs or choice.finish_reason is not None
    if not has_content and not choice.prompt_token_ids and not choice.prompt_logprobs:
        return None
    prompt_token_ids, prompt_logprobs = prompt.take()
    try:
        logprobs = choice.entries()
    except ValueError as error:
        raise MalformedAnswer(f"log-probabilities that cannot be read: {error}") from error
    return ClientDelta(
        text=text,
        token_ids=choice.token_ids or [],
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        usage=chunk.usage,
        logprobs=logprobs,
        prompt_token_ids=choice.prompt_token_ids or prompt_token_ids,
        request_id=chunk.id,
        choice=choice.index,
        prompt_logprobs=choice.prompt_logprobs or prompt_logprobs,
        is_paused=chunk.paused,
        reasoning=choice.reasoning,
        tool_calls=[CallPiece(c.index, c.function.arguments, c.id, c.function.name) for c in choice.calls],
    )
