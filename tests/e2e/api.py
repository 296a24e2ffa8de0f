"""A running server as its clients see it: both endpoints, and their answers, whole or streamed, in one form.

A choice that came in chunks is joined, and what every client relies on is checked on the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from callboard.bench.overlap import read_counter
from callboard.bench.server_process import ServerProcess

SMOL_LENGTH = 512
LETTERS_LENGTH, LETTERS_BLOCKS, LETTERS_STEP = 512, 40, 64
"""Tokens of a sequence, KV blocks of 16 tokens, tokens of a step."""
LETTERS_SETTINGS = (
    "model.served_name=letters",
    f"model.max_model_len={LETTERS_LENGTH}",
    f"kv_cache.num_blocks={LETTERS_BLOCKS}",
    f"scheduler.max_num_batched_tokens={LETTERS_STEP}",
)
ENDPOINTS = ("completions", "chat")
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


class Reply(msgspec.Struct):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.text)
        return answer

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error body, whose form is checked."""
        body = self.json
        assert set(body) == {"error"}, self.text
        error: dict[str, Any] = body["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"], self.text
        assert "Traceback" not in self.text and len(self.text) < 4_000
        return error

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Chunks of an event stream, which must end with [DONE]."""
        events = [line.removeprefix("data: ") for line in self.text.split("\n\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]", self.text[-300:]
        return [json.loads(event) for event in events[:-1]]


class Choice(msgspec.Struct):
    """One choice, whole or joined from its chunks."""

    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] = []
    tokens: list[str] = []
    """Names of the tokens in the log-probabilities, if these were asked for."""
    logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    token_bytes: list[list[int]] = []
    """Chat only."""
    text_offset: list[int] = []
    """Completions only."""
    pieces: list[str] = []
    """Texts of the chunks."""


class Api:
    """Asks a server; greedy unless a request says otherwise."""

    def __init__(self, server: ServerProcess, send: Callable[..., Reply]) -> None:
        self.server, self.url, self._send = server, server.url, send

    def get(self, path: str) -> Reply:
        return self._send(self.url + path)

    def post(self, path: str, body: object) -> Reply:
        return self._send(self.url + path, body)

    def ask(self, endpoint: str, prompt: Any, **fields: object) -> Reply:
        """`prompt` is the one of completions; in chat it is the text of the user's message, or the messages."""
        body = {"temperature": 0, **fields}
        if endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            return self.post("/v1/chat/completions", body)
        return self.post("/v1/completions", {"prompt": prompt, **body})

    def choices(self, endpoint: str, prompt: Any, **fields: object) -> list[Choice]:
        return choices_of(self.ask(endpoint, prompt, **fields))

    def text(self, endpoint: str, prompt: Any, **fields: object) -> str:
        """Of the only choice."""
        (choice,) = self.choices(endpoint, prompt, **fields)
        return choice.text

    def counter(self, name: str) -> float:
        return read_counter(self.url, f"callboard:{name}")


def at_once(ask: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`ask` for all items side by side, answers in their order."""
    with ThreadPoolExecutor(min(32, len(items))) as threads:
        return list(threads.map(ask, items))


def usage_of(reply: Reply) -> dict[str, Any]:
    """Totals of an answer; a stream must have asked for them."""
    assert reply.status == 200, reply.text
    usage: dict[str, Any] = (reply.chunks[-1] if reply.text.startswith("data:") else reply.json)["usage"]
    return usage


def choices_of(reply: Reply) -> list[Choice]:
    """By index. Each has one finish_reason, in its last part, and the key in all others (raw JSON, not an SDK's)."""
    assert reply.status == 200, reply.text
    parts = reply.chunks if reply.text.startswith("data:") else [reply.json]
    found: dict[int, Choice] = {}
    for part in parts:
        for raw in part["choices"]:
            choice = found.setdefault(raw["index"], Choice())
            assert choice.finish_reason is None, "a part behind the last"
            _add(choice, raw)
    assert sorted(found) == list(range(len(found)))
    assert all(choice.finish_reason for choice in found.values())
    return [found[index] for index in sorted(found)]


def _add(choice: Choice, raw: dict[str, Any]) -> None:
    choice.finish_reason, choice.stop_reason = raw["finish_reason"], raw.get("stop_reason")
    piece = raw["text"] if "text" in raw else (raw.get("delta") or raw.get("message") or {}).get("content") or ""
    choice.text += piece
    choice.pieces.append(piece)
    choice.token_ids += raw.get("token_ids") or []
    logprobs = raw["logprobs"]
    if logprobs is None:
        return
    if "content" in logprobs:
        for entry in logprobs["content"]:
            choice.tokens.append(entry["token"])
            choice.logprobs.append(entry["logprob"])
            choice.token_bytes.append(entry["bytes"])
            choice.top_logprobs.append({top["token"]: top["logprob"] for top in entry["top_logprobs"]})
    else:
        choice.tokens += logprobs["tokens"]
        choice.logprobs += logprobs["token_logprobs"]
        choice.top_logprobs += logprobs["top_logprobs"] or []
        choice.text_offset += logprobs["text_offset"]
