"""One HTTP exchange: connection pool, time limits, repetitions, and every failure as a RequestError."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from ..errors import RequestError, StreamCut, TimeLimitExceeded, Unreachable
from .error_answers import error_from_answer
from .retries import Retries
from .timeouts import Timeouts

UNIX_PREFIX = "unix:"
_MAX_ERROR_BYTES = 64 * 1024
"""Of the body of an error answer that is read."""
_OK = frozenset({200})
_CLOSED = "the client was closed"


class Exchange(msgspec.Struct, frozen=True):
    """What is sent, and how long its answer may take."""

    method: str
    path: str
    limits: Timeouts
    silence: str
    """The name of the limit between the parts of the answer: `chunk_s` or `answer_s`."""
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    expected: frozenset[int] = _OK
    """Statuses that are no error."""

    @property
    def silence_s(self) -> float | None:
        return self.limits.chunk_s if self.silence == "chunk_s" else self.limits.answer_s


class Transport:
    """A connection pool to one server. `base_url`: with or without `/v1`, or `unix:PATH` for a socket in the file
    system."""

    def __init__(self, base_url: str, headers: Mapping[str, str], retries: Retries) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = dict(headers)
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None
        self._open: set[aiohttp.ClientResponse] = set()

    def open_session(self) -> aiohttp.ClientSession:
        """Needs a running event loop, to which it belongs from then on."""
        if self._session is None:
            is_unix = self.base_url.startswith(UNIX_PREFIX)
            path = self.base_url.removeprefix(UNIX_PREFIX)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path, limit=0) if is_unix else aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def close(self) -> None:
        """Close all connections; answers that are being read end with StreamCut. May be called twice."""
        session, self._session = self._session, None
        for response in self._open:  # aiohttp would let a task wait for ever that reads from one
            response.content.set_exception(aiohttp.ClientConnectionError(_CLOSED))
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def exchange(self, exchange: Exchange) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, its head read; leaving the block closes its connection unless the answer is read to its end.

        Raises RequestError of the kind that the server answered; Unreachable, TimeLimitExceeded, StreamCut, also for
        what goes wrong while the block reads.
        """
        is_answered = False
        try:
            session = self.open_session()
            response = await self._answered(session, exchange)
            is_answered = True
            self._open.add(response)
            try:
                if self._session is not session:  # closed while the head of the answer was on its way to here
                    raise aiohttp.ClientConnectionError(_CLOSED)
                yield response
            finally:
                self._open.discard(response)
                response.close()
        except aiohttp.ConnectionTimeoutError as error:
            raise self._timed_out(exchange, "connect_s", exchange.limits.connect_s, "no connection to {}") from error
        except aiohttp.SocketTimeoutError as error:
            raise self._timed_out(exchange, exchange.silence, exchange.silence_s, "{} sent nothing") from error
        except TimeoutError as error:
            raise self._timed_out(exchange, "total_s", exchange.limits.total_s, "no whole answer of {}") from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:  # they say no more than the URL
            forms = "http://HOST:PORT, https://HOST:PORT or unix:PATH"
            raise Unreachable(f"the base URL {self.base_url!r} is none that can be asked; it is {forms}") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            if is_answered:
                raise StreamCut(f"the answer was cut off before its end: {error}") from error
            raise Unreachable(f"no answer from {self.base_url}: {error}") from error

    async def _answered(self, session: aiohttp.ClientSession, exchange: Exchange) -> aiohttp.ClientResponse:
        """An answer with an expected status, after as many repetitions as are allowed. Raises what aiohttp raises."""
        total_s = exchange.limits.total_s
        deadline_s = None if total_s is None else time.monotonic() + total_s
        for attempt in itertools.count():
            failure: Exception
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            try:
                response = await self._send(session, exchange, left_s)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:  # nothing was sent
                failure, pause_s = error, self._retries.pause_s(attempt, None)
            else:
                if response.status in exchange.expected:
                    return response
                refusal = await _read_refusal(response)
                answer = (response.status, response.headers, refusal.retry_after_s)
                failure, pause_s = refusal, self._retries.pause_s(attempt, answer)
            if pause_s is None or (deadline_s is not None and time.monotonic() + pause_s >= deadline_s):
                raise failure
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def _send(
        self, session: aiohttp.ClientSession, exchange: Exchange, left_s: float | None
    ) -> aiohttp.ClientResponse:
        headers = {**self._headers, **exchange.headers}
        if exchange.body is not None:
            headers.setdefault("Content-Type", "application/json")
        if left_s is not None and left_s <= 0:
            raise TimeoutError
        origin = "http://localhost" if self.base_url.startswith(UNIX_PREFIX) else self.base_url
        return await session.request(
            exchange.method,
            origin + exchange.path,
            data=exchange.body,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=left_s, sock_connect=exchange.limits.connect_s, sock_read=exchange.silence_s
            ),
        )

    def _timed_out(self, exchange: Exchange, limit: str, seconds: float | None, what: str) -> TimeLimitExceeded:
        told = f"within {seconds:g} s" if limit != exchange.silence else f"for {seconds:g} s"
        return TimeLimitExceeded(f"{what.format(self.base_url)} {told} ({limit})", limit=limit)


async def _read_refusal(response: aiohttp.ClientResponse) -> RequestError:
    """The error of an answer, whose connection is free again, or closed if the body has no end in sight."""
    body = bytearray()
    async with response:
        async for received in response.content.iter_any():
            body += received
            if len(body) > _MAX_ERROR_BYTES:
                response.close()
                break
    return error_from_answer(response.status, response.headers, bytes(body))
