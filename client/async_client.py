"""`AsyncClient`: chat and completions as async iterators of deltas.

async with AsyncClient("http://127.0.0.1:8000") as client:
    async for delta in client.chat([{"role": "user", "content": "Hello"}], max_tokens=20):
        print(delta.text, end="")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import aiohttp
import msgspec

from ..actors.frontend_api import Health
from ..errors import EngineFailure, Unavailable
from .answers import error_from_answer
from .delta_stream import deltas_of
from .deltas import ClientDelta, ModelEntries, ModelEntry, StatusEntry

T = TypeVar("T")


class AsyncClient:
    """A connection pool to one server.

    `base_url` with or without `/v1`; `timeout_s`: the longest silence of the server that is not a failure.
    """

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = 60.0) -> None:
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._streaming: set[aiohttp.ClientResponse] = set()

    async def __aenter__(self) -> AsyncClient:
        self._open_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; streams that are open are aborted: EngineFailure. May be called twice."""
        session, self._session = self._session, None
        for response in self._streaming:  # aiohttp would let a task wait for ever that reads from one
            response.content.set_exception(aiohttp.ClientConnectionError("the client was closed"))
        if session is not None:
            await session.close()

    def chat(self, messages: Sequence[Mapping[str, object]], **params: object) -> AsyncGenerator[ClientDelta, None]:
        """Stream the answer to `messages`; `params` are fields of the request body, e.g. max_tokens, temperature, seed.

        With `n` the deltas of all choices come in one stream; `ClientDelta.choice` tells them apart.

        Leaving the iteration, `aclose()` and cancellation close the connection, which aborts the request.
        Raises RequestError of the kind that the server answered; EngineFailure if the stream is cut off.
        """
        return self._stream("/v1/chat/completions", {"messages": messages, **params})

    def complete(self, prompt: str | Sequence[int], **params: object) -> AsyncGenerator[ClientDelta, None]:
        """Stream the continuation of `prompt`, text or token ids; else as `chat`."""
        return self._stream("/v1/completions", {"prompt": prompt, **params})

    async def models(self) -> list[ModelEntry]:
        """The models that the server has. Raises RequestError."""
        return (await self._get("/v1/models", ModelEntries)).data

    async def health(self) -> Health:
        """Liveness and readiness. Raises Unavailable if the server cannot be reached."""
        live_status, live = await self._get_status("/health")
        ready_status, ready = await self._get_status("/ready")
        return Health(live_status == 200, ready_status == 200, ready.reason or live.reason)

    async def _stream(self, path: str, fields: dict[str, object]) -> AsyncGenerator[ClientDelta, None]:
        body = {"return_token_ids": True, **fields, "stream": True, "stream_options": {"include_usage": True}}
        n = fields.get("n")
        num_choices = n if isinstance(n, int) else 1
        is_answered = False
        session = self._open_session()
        try:
            async with session.post(
                self._base_url + path,
                data=msgspec.json.encode(body),
                headers={**self._headers, "Content-Type": "application/json"},
            ) as response:
                is_answered = True
                self._streaming.add(response)
                try:
                    if self._session is not session:  # closed while the head of the answer was on its way to here
                        raise aiohttp.ClientConnectionError("the client was closed")
                    if response.status != 200:
                        raise error_from_answer(response.status, response.headers, await response.read())
                    async for delta in deltas_of(response.content, num_choices):
                        yield delta
                finally:
                    self._streaming.discard(response)
                    response.close()
        except aiohttp.ConnectionTimeoutError as error:
            raise Unavailable(f"no connection to {self._base_url} within {self._timeout_s:g} s") from error
        except TimeoutError as error:
            raise EngineFailure(f"the server sent nothing for {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            if is_answered:
                raise EngineFailure(f"the stream was cut off without a finish: {error}") from error
            raise Unavailable(f"no answer from {self._base_url}: {error}") from error

    async def _get(self, path: str, kind: type[T]) -> T:
        try:
            async with self._open_session().get(self._base_url + path, headers=self._headers) as response:
                body = await response.read()
                if response.status != 200:
                    raise error_from_answer(response.status, response.headers, body)
                return msgspec.json.decode(body, type=kind)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"no answer from {self._base_url}: {error}") from error
        except msgspec.DecodeError as error:
            raise EngineFailure(f"{path} answered with something else than expected: {error}") from error

    async def _get_status(self, path: str) -> tuple[int, StatusEntry]:
        try:
            async with self._open_session().get(self._base_url + path, headers=self._headers) as response:
                return response.status, msgspec.json.decode(await response.read(), type=StatusEntry)
        except msgspec.DecodeError as error:
            raise EngineFailure(f"{path} answered with something else than expected: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"no answer from {self._base_url}: {error}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s),
            )
        return self._session
