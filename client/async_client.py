"""`AsyncClient`: chat and completions as async iterators of deltas, or whole.

async with AsyncClient("http://127.0.0.1:8000") as client:
    async for delta in client.chat([{"role": "user", "content": "Hello"}], max_tokens=20):
        print(delta.text, end="")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack
from urllib.parse import quote, unquote

import aiohttp
import msgspec

from ..actors.frontend_api import Health
from ..errors import Unreachable
from .delta_stream import DeltaStream, StreamHead, deltas_of
from .deltas import Answer, ClientDelta, ModelEntry, Tokens
from .explanations import LiveRequest, RequestExplanation
from .json_body import encode_body, read_json
from .metrics_text import parse_metrics
from .params import (
    CALL_NAMES,
    Call,
    ChatParams,
    CompletionParams,
    Messages,
    Prompt,
    PromptParams,
    num_prompts,
)
from .retries import Retries
from .session import Session
from .timeouts import Timeouts
from .transport import Exchange, Transport
from .whole_answers import answer_of
from .wire import DetokenizedEntry, ModelEntries, RequestEntries, StatusEntry, VersionEntry, WireAnswer

T = TypeVar("T")

_answer_decoder = msgspec.json.Decoder(WireAnswer)
_TAKEN = frozenset({202})
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class AsyncClient:
    """A connection pool to one server, for one event loop.

    Every call raises RequestError and its kinds (`callboard.errors`), and nothing else once its arguments are right:
    InvalidRequest, Unauthorized, UnknownModel, Overloaded, Unavailable, EngineFailure as the server answers, and
    Unreachable, TimeLimitExceeded, StreamCut, MalformedAnswer for what the client sees of itself.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeouts: Timeouts | None = None,
        max_retries: int = 0,
        retry_backoff_s: float = 0.5,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`base_url`: with or without `/v1`, or `unix:PATH`. `headers`: sent with every request.

        `max_retries`: so often a call is made again whose request the server has not begun: no connection, 429, 503;
        after Retry-After, else after `retry_backoff_s`, doubled each time, less a random part.
        """
        key = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._transport = Transport(base_url, {**key, **(headers or {})}, Retries(max_retries, retry_backoff_s))
        self._limits = timeouts or Timeouts()

    async def __aenter__(self) -> AsyncClient:
        self._transport.open_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; streams that are open are aborted: StreamCut. May be called twice."""
        await self._transport.close()

    def chat(self, messages: Messages, **params: Unpack[ChatParams]) -> DeltaStream:
        """Stream the answer to `messages`.

        With `n` the deltas of all choices come in one stream; `ClientDelta.choice` tells them apart.
        """
        call = Call(params, ChatParams.__optional_keys__, self._limits)
        return self._stream(_CHAT, {"messages": messages}, call, 1)

    def complete(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> DeltaStream:
        """Stream the continuation of `prompt`, or of each in a list; else as `chat`."""
        call = Call(params, CompletionParams.__optional_keys__, self._limits)
        return self._stream(_COMPLETIONS, {"prompt": prompt}, call, num_prompts(prompt))

    def session(self, prompt: str | Sequence[int], **params: Unpack[CompletionParams]) -> Session:
        """A streaming session that begins with `prompt`: `async with client.session(...) as session:`. `max_tokens`,
        `min_tokens` and `stop` are of each turn."""
        call = Call(params, CompletionParams.__optional_keys__, self._limits)

        async def send(session_id: str, prompt: str | Sequence[int] | None, is_last: bool) -> None:
            body = encode_body({"last": is_last} if prompt is None else {"prompt": prompt, "last": is_last})
            path = f"/v1/requests/{quote(session_id, safe='')}/input"
            exchange = Exchange("POST", path, call.timeouts, "chunk_s", body, call.headers, _TAKEN)
            async with self._transport.exchange(exchange) as response:
                await response.read()

        return Session(self._stream(_COMPLETIONS, {"prompt": prompt, "session": True}, call, 1), send)

    async def chat_whole(self, messages: Messages, **params: Unpack[ChatParams]) -> Answer:
        """The answer to `messages` in one piece; cancelling the call aborts the request."""
        call = Call(params, ChatParams.__optional_keys__, self._limits)
        return await self._whole(_CHAT, {"messages": messages}, call, 1)

    async def complete_whole(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> Answer:
        """The continuation of `prompt`, or of each in a list, in one piece; else as `chat_whole`."""
        call = Call(params, CompletionParams.__optional_keys__, self._limits)
        return await self._whole(_COMPLETIONS, {"prompt": prompt}, call, num_prompts(prompt))

    async def tokenize(self, prompt: str | Messages, **params: Unpack[PromptParams]) -> Tokens:
        """The token ids of a text, or of messages under the model's chat template."""
        call = Call(params, PromptParams.__optional_keys__, self._limits)
        name = "prompt" if isinstance(prompt, str) else "messages"
        return await self._ask("/tokenize", Tokens, {name: prompt, **call.fields}, call)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return (await self._ask("/detokenize", DetokenizedEntry, {"tokens": token_ids})).prompt

    async def explain(self, request_id: str) -> RequestExplanation:
        """Where the time of a request went, and what it waits for. `request_id`: the one in its deltas or its answer,
        or the one that it was sent with. One that the server does not know is an InvalidRequest of status 404."""
        return await self._ask(f"/v1/requests/{quote(request_id, safe='')}", RequestExplanation)

    async def requests(self) -> list[LiveRequest]:
        """The requests that have not ended: of the frontend that answers, and with API keys of the key's tenant."""
        return (await self._ask("/v1/requests", RequestEntries)).data

    async def models(self) -> list[ModelEntry]:
        """The models that the server has."""
        return (await self._ask("/v1/models", ModelEntries)).data

    async def health(self) -> Health:
        """Liveness and readiness."""
        live, ready = await self._status("/health"), await self._status("/ready")
        return Health(live[0] == 200, ready[0] == 200, ready[1].reason or live[1].reason)

    async def ready(self) -> bool:
        """Whether new requests are served now; False also while no server listens."""
        try:
            return (await self._status("/ready"))[0] == 200
        except Unreachable:
            return False

    async def version(self) -> str:
        """The server's."""
        return (await self._ask("/version", VersionEntry)).version

    async def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name, with their labels as the server writes them: `name{label="value"}`."""
        async with self._transport.exchange(Exchange("GET", "/metrics", self._limits, "chunk_s")) as response:
            return parse_metrics(await response.read())

    def _stream(self, path: str, prompt: dict[str, object], call: Call, num_prompts: int) -> DeltaStream:
        options = {"include_usage": True}
        asked = call.fields.get("stream_options")
        if isinstance(asked, Mapping):
            options = {**asked, **options}
        fields = {"return_token_ids": True, **prompt, **call.fields, "stream": True, "stream_options": options}
        head = StreamHead()
        exchange = Exchange("POST", path, call.timeouts, "chunk_s", encode_body(fields), call.headers)
        return DeltaStream(self._deltas(exchange, num_prompts * _num_choices(call), head), head)

    async def _deltas(
        self, exchange: Exchange, num_choices: int, head: StreamHead
    ) -> AsyncGenerator[ClientDelta, None]:
        async with self._transport.exchange(exchange) as response:
            head.request_id = response.headers.get("X-Request-Id", "")
            head.ignored_fields = _ignored_fields(response)
            async for delta in deltas_of(response.content, num_choices, head):
                yield delta

    async def _whole(self, path: str, prompt: dict[str, object], call: Call, num_prompts: int) -> Answer:
        fields = {"return_token_ids": True, **prompt, **call.fields, "stream": False}
        fields.pop("stream_options", None)
        exchange = Exchange("POST", path, call.timeouts, "answer_s", encode_body(fields), call.headers)
        async with self._transport.exchange(exchange) as response:
            wire = read_json(await response.read(), _answer_decoder, "the answer")
            return answer_of(wire, num_prompts * _num_choices(call), _ignored_fields(response))

    async def _ask(
        self, path: str, kind: type[T], fields: Mapping[str, object] | None = None, call: Call | None = None
    ) -> T:
        """GET, or POST with `fields`."""
        call = call or Call({}, CALL_NAMES, self._limits)
        body = None if fields is None else encode_body(fields)
        method = "GET" if body is None else "POST"
        async with self._transport.exchange(
            Exchange(method, path, call.timeouts, "chunk_s", body, call.headers)
        ) as response:
            return read_json(await response.read(), msgspec.json.Decoder(kind), f"the answer of {path}")

    async def _status(self, path: str) -> tuple[int, StatusEntry]:
        exchange = Exchange("GET", path, self._limits, "chunk_s", expected=frozenset({200, 503}))
        async with self._transport.exchange(exchange) as response:
            decoder = msgspec.json.Decoder(StatusEntry)
            return response.status, read_json(await response.read(), decoder, f"the answer of {path}")


def _num_choices(call: Call) -> int:
    n = call.fields.get("n")
    return n if isinstance(n, int) else 1


def _ignored_fields(response: aiohttp.ClientResponse) -> tuple[str, ...]:
    header = response.headers.get("x-ignored-fields", "")
    return tuple(unquote(name.strip()) for name in header.split(",") if name.strip())
