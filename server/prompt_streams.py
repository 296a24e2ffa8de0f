"""One request with several prompts: each is a request of its own in the engine, and their deltas come as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from ..actors.frontend_api import Delta, FrontendAPI, RequestStream
from ..actors.task_register import start_task
from ..errors import RequestError
from .generation_request import GenerationRequest


def prompt_ids(request_id: str, num_prompts: int) -> list[str]:
    """The engine's ids of a request with so many prompts: its own, or one for each."""
    return [request_id] if num_prompts == 1 else [f"{request_id}-{index}" for index in range(num_prompts)]


def submit(
    frontend: FrontendAPI, request_id: str, request: GenerationRequest, tenant: str, session_idle_s: float
) -> RequestStream:
    """The stream of all of the request's choices. Raises RequestError if one of its prompts is not taken, and then none
    is. `session_idle_s`: of a streaming session."""
    ids = prompt_ids(request_id, len(request.prompts))
    streams: list[RequestStream] = []
    try:
        for prompt_id, prompt in zip(ids, request.prompts, strict=True):
            streams.append(
                frontend.submit(
                    prompt_id,
                    prompt,
                    request.sampling,
                    cache_salt=request.cache_salt,
                    returns_prompt=request.returns_prompt,
                    num_choices=request.answer.num_choices,
                    options=request.prompt_options,
                    priority=request.priority,
                    tenant=tenant,
                    deadline_ms=request.deadline_ms,
                    session_idle_s=session_idle_s if request.is_session else None,
                    output_format=request.plan.output_format,
                    reasoning=request.plan.reasoning,
                    kept_markers=request.plan.kept_markers,
                )
            )
    except BaseException:
        for stream in streams:
            stream.close()
        raise
    return streams[0] if len(streams) == 1 else PromptStreams(request_id, streams, request.answer.num_choices)


class _End(msgspec.Struct, frozen=True, gc=False):
    """A prompt's stream is over."""


class PromptStreams:
    """Implements `RequestStream`: choice i of prompt p is choice p * num_choices + i.

    A task reads each stream and has at most one delta in hand; what comes meanwhile merges where it always does.
    """

    def __init__(self, request_id: str, streams: Sequence[RequestStream], num_choices: int) -> None:
        self.request_id = request_id
        self._streams = streams
        self._num_choices = num_choices
        self._arrived: asyncio.Queue[Delta | Exception | _End] = asyncio.Queue(maxsize=1)
        self._num_open = len(streams)
        self._readers = [
            start_task(
                self._read(stream, index),
                owner=request_id,
                event=f"reading prompt {index}",
                is_owned=lambda: self._num_open > 0,
            )
            for index, stream in enumerate(streams)
        ]

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while self._num_open:
            match await self._arrived.get():
                case Delta() as delta:
                    return delta
                case _End():
                    self._num_open -= 1
                case Exception() as error:
                    self.close()
                    raise error
        raise StopAsyncIteration

    def close(self) -> None:
        self._num_open = 0
        for stream in self._streams:
            stream.close()
        for reader in self._readers:
            reader.cancel()

    async def _read(self, stream: RequestStream, index: int) -> None:
        try:
            async for delta in stream:
                choice = index * self._num_choices + delta.choice
                await self._arrived.put(msgspec.structs.replace(delta, choice=choice))
            await self._arrived.put(_End())
        except RequestError as error:
            if error.param == "prompt":
                error.param = f"prompt[{index}]"
                error.message = f"{error.param}: {error.message}"
            await self._arrived.put(error)
        except Exception as error:
            await self._arrived.put(error)
