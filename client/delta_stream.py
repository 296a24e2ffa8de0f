"""From the bytes of an event stream to deltas."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import aiohttp
import msgspec

from ..errors import EngineFailure
from .answers import error_from_event
from .deltas import Chunk, ClientDelta
from .sse import EventParser

_chunk_decoder = msgspec.json.Decoder(Chunk)


async def deltas_of(content: aiohttp.StreamReader, num_choices: int) -> AsyncGenerator[ClientDelta, None]:
    """Deltas of all choices as they come; the last one waits for the usage, so that it has both.

    Raises the error of an error event; EngineFailure if the stream ends before each choice has a finish reason.
    """
    parser = EventParser()
    prompt_token_ids: list[int] | None = None
    last: ClientDelta | None = None
    num_left = num_choices
    async for received in content.iter_any():
        for event in parser.feed(received):
            if event == b"[DONE]":
                if last is None:
                    raise EngineFailure("the stream ended without a finish")
                yield last
                return
            chunk = _decode(event)
            if chunk.error is not None:
                raise error_from_event(chunk.error)
            prompt_token_ids = chunk.prompt_token_ids or prompt_token_ids
            if not chunk.choices:
                if last is not None and chunk.usage is not None:
                    last = msgspec.structs.replace(last, usage=chunk.usage)
                continue
            delta = _delta(chunk, prompt_token_ids)
            num_left -= delta.finish_reason is not None
            if num_left <= 0:
                last = delta
            elif delta.text or delta.token_ids or delta.logprobs or delta.finish_reason is not None:
                yield delta
            else:
                continue
            prompt_token_ids = None
    raise EngineFailure("the stream was cut off without a finish")


def _decode(event: bytes) -> Chunk:
    try:
        return _chunk_decoder.decode(event)
    except msgspec.DecodeError as error:
        raise EngineFailure(f"an event of the stream cannot be read: {error}") from error


def _delta(chunk: Chunk, prompt_token_ids: list[int] | None) -> ClientDelta:
    choice = chunk.choices[0]
    text = choice.text if choice.delta is None else choice.delta.content
    return ClientDelta(
        text=text or "",
        token_ids=choice.token_ids or [],
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        logprobs=choice.logprobs,
        prompt_token_ids=choice.prompt_token_ids or prompt_token_ids,
        request_id=chunk.id,
        choice=choice.index,
    )
