"""The life of a generating request in the server: body → validated request → engine → stream or whole answer.

The client's leaving cancels the handler (aiohttp's handler cancellation), streaming or not; `close()` of the request's
stream stands in a `finally`, so the engine always hears of it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

from aiohttp import web

from ..actors.frontend_api import Delta, FrontendAPI, RequestStream
from ..errors import InvalidRequest, RequestError, Unavailable
from ..topology.schema import ServerSection
from .answer_encoder import AnswerEncoder, encode_answer
from .answer_format import CompletionFormat
from .body_parser import BodyParser
from .body_reader import BodyBudget, read_body
from .callers import Callers
from .chat_format import ChatFormat
from .chat_request import parse_chat_request
from .chunk_sequence import ChunkSequence, StreamState, finish_error, is_refusal
from .completion_request import parse_completion_request
from .event_writer import ClientGone, ClientStalled, EventWriter, end_answer
from .generation_request import GenerationRequest
from .http_errors import unexpected
from .json_values import check_num_values
from .metrics import ServerMetrics
from .open_sessions import OpenSessions
from .prompt_only import without_output
from .prompt_streams import prompt_ids, submit
from .request_body import ignored_header, parse_body
from .request_ids import REQUEST_ID, request_id_header
from .request_records import RequestRecord, RequestRecords
from .request_timing import RequestTiming
from .served_model import served_model
from .session_timing import SessionTiming
from .whole_choices import collect, unfinished

CLOSE_TIMEOUT_S = 2.0
"""At shutdown: for answers whose last tokens are on their way; whoever closes the server has drained the frontend."""


class GenerationHandlers:
    """The two generating endpoints over one frontend."""

    def __init__(
        self,
        frontend: FrontendAPI,
        settings: ServerSection,
        metrics: ServerMetrics,
        bodies: BodyBudget,
        parser: BodyParser,
        records: RequestRecords,
        callers: Callers,
        sessions: OpenSessions,
    ) -> None:
        self._sessions = sessions
        self._frontend = frontend
        self._settings = settings
        self._metrics = metrics
        self._model = served_model(frontend, settings)
        self._live: set[asyncio.Task[object]] = set()
        self._is_closing = False
        self._bodies = bodies
        self._parser = parser
        self._records = records
        self._callers = callers
        self._encoder = AnswerEncoder()

    async def close(self, app: web.Application) -> None:
        """Give live requests a moment to end, then end them with a 503 or an error event. Called at shutdown."""
        if self._live:
            await asyncio.wait(self._live, timeout=CLOSE_TIMEOUT_S)
        self._is_closing = True
        for task in self._live:
            task.cancel()
        self._parser.close()  # last: a large body that came meanwhile is answered by the frontend's 503
        self._encoder.close()

    async def chat_completions(self, http_request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions: an answer to messages, whole or as a stream."""
        return await self._handle(http_request, self._parse_chat, "chatcmpl-")

    async def completions(self, http_request: web.Request) -> web.StreamResponse:
        """POST /v1/completions: the continuation of a prompt, whole or as a stream."""
        return await self._handle(http_request, self._parse_completion, "cmpl-")

    async def _handle(
        self, http_request: web.Request, parse: Callable[[bytes], GenerationRequest], id_prefix: str
    ) -> web.StreamResponse:
        timing = RequestTiming(self._metrics)
        settings = self._settings
        with self._bodies.share() as share:  # to the end: the prompt lives as long as the request
            body = await read_body(
                http_request, share, max_bytes=settings.max_request_bytes, stall_s=settings.client_stall_s
            )
            request = await self._parser.parse(body, parse)
            del body
            timing.expect(request.num_choices, n=request.answer.num_choices, max_tokens=request.sampling.max_tokens)
            if request.is_session:
                session_timing = SessionTiming(timing, self._metrics, request.sampling.max_tokens)
                return await self._generate(http_request, request, id_prefix, session_timing)
            return await self._generate(http_request, request, id_prefix, timing)

    def _parse_chat(self, body: bytes) -> GenerationRequest:
        check_num_values(body, self._model.max_model_len)
        return parse_chat_request(parse_body(body), self._model)

    def _parse_completion(self, body: bytes) -> GenerationRequest:
        check_num_values(body, self._model.max_model_len)
        return parse_completion_request(parse_body(body), self._model)

    async def _generate(
        self,
        http_request: web.Request,
        request: GenerationRequest,
        id_prefix: str,
        timing: RequestTiming | SessionTiming,
    ) -> web.StreamResponse:
        request_id = id_prefix + uuid.uuid4().hex
        header_id = request_id_header(http_request.headers.get(REQUEST_ID))
        headers = {REQUEST_ID: header_id}
        if request.ignored_fields:
            headers["x-ignored-fields"] = ignored_header(request.ignored_fields)
        tenant = self._callers.tenant_of(http_request, request.tenant)
        record = _record_of(request, request_id, header_id, tenant, timing.arrival_ns)
        stream = submit(self._frontend, request_id, request, tenant, self._settings.session_idle_s)
        if isinstance(timing, SessionTiming):
            self._sessions.add(request_id, http_request, timing)
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        self._records.begin(record)
        deltas = self._deltas(stream, record, is_prompt_only=request.is_prompt_only)
        try:
            make_format = ChatFormat if request.endpoint == "chat" else CompletionFormat
            answer_format = make_format(request_id, self._frontend.model_name, int(time.time()), request.answer)
            if request.streams:
                chunks = ChunkSequence(
                    answer_format, num_choices=request.num_choices, includes_usage=request.answer.includes_usage
                )
                writer = EventWriter(http_request, headers, self._settings)
                return await _answer_in_events(deltas, chunks, writer, timing, self._encoder)
            assert isinstance(timing, RequestTiming), "a session is streamed"
            whole = await collect(deltas, request.num_choices, timing)
            body = await self._encoder.encode(lambda: encode_answer(answer_format.whole(whole)), whole)
            return await self._answer_whole(http_request, body, headers, timing)
        except RequestError as error:
            if error.status == InvalidRequest.status and error.param is None:
                error.param = request.plan.format_param  # the one thing that is found wrong without being named
            if error.status >= 500 and error.status != 503:
                timing.end("error")
            else:
                timing.refused()
            raise
        except Exception:
            timing.end("error")
            raise
        finally:
            self._live.discard(task)
            self._records.end(record)
            self._sessions.remove(request_id)
            timing.end("abort")
            stream.close()

    async def _deltas(
        self, stream: RequestStream, record: RequestRecord, *, is_prompt_only: bool
    ) -> AsyncIterator[Delta]:
        """The stream's deltas; Unavailable in place of the cancellation by `close`."""
        try:
            async for delta in stream:
                record.read(delta)
                yield without_output(delta) if is_prompt_only else delta
                record.written()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_closing or task is None:
                raise
            task.uncancel()
            raise Unavailable("the server is shutting down") from None

    async def _answer_whole(
        self,
        http_request: web.Request,
        body: bytes,
        headers: Mapping[str, str],
        timing: RequestTiming | SessionTiming,
    ) -> web.Response:
        response = web.Response(body=body, content_type="application/json", headers=headers)
        await response.prepare(http_request)
        try:
            await end_answer(http_request, response, self._settings.client_stall_s)
        except (ClientGone, ConnectionError) as error:
            timing.client_gone(is_stalled=isinstance(error, ClientStalled))
            raise ConnectionResetError("the client left before the end of its answer") from error
        return response


def _record_of(
    request: GenerationRequest, request_id: str, header_id: str, tenant: str, arrival_ns: int
) -> RequestRecord:
    return RequestRecord(
        request_id,
        header_id,
        prompt_ids(request_id, len(request.prompts)),
        tenant=tenant,
        num_choices=request.answer.num_choices,
        streams=request.streams,
        arrival_ns=arrival_ns,
    )


async def _answer_in_events(
    stream: AsyncIterator[Delta],
    chunks: ChunkSequence,
    writer: EventWriter,
    timing: RequestTiming | SessionTiming,
    encoder: AnswerEncoder,
) -> web.StreamResponse:
    """Raises RequestError as long as the response has not begun; afterwards an error is an event."""
    try:
        try:
            async for delta in stream:
                if not writer.is_started and is_refusal(delta):
                    raise finish_error(delta)
                timing.observe(delta)
                if delta.finish is not None and delta.finish.reason == "error" and not writer.is_started:
                    raise finish_error(delta)
                events = await encoder.encode(partial(chunks.on_delta, delta), (delta,))
                if events:
                    await writer.write(events)
                if chunks.state is StreamState.ENDED:
                    break
            else:
                raise unfinished()
        except RequestError as error:
            if not writer.is_started:
                raise
            timing.end("error")
            await writer.write(chunks.on_error(error))
        except ClientGone:
            raise
        except Exception as error:
            failure = unexpected(error)
            if not writer.is_started:
                raise failure from error
            timing.end("error")
            await writer.write(chunks.on_error(failure))
        await writer.end()
    except ClientGone as error:
        timing.client_gone(is_stalled=isinstance(error, ClientStalled))
        raise ConnectionResetError("the client left before the end of its answer") from error
    finally:
        writer.stop_comments()
    return writer.response
