"""The parts of the server's JSON that the client reads. Unknown fields are passed over."""

from __future__ import annotations

import msgspec

from .deltas import ClientUsage, Logprob, ModelEntry, PromptLogprob, PromptLogprobs, TopLogprob
from .explanations import LiveRequest


class WireAlternative(msgspec.Struct, frozen=True):
    """An entry of `top_logprobs` of a chat choice."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class WireToken(msgspec.Struct, frozen=True):
    """An entry of `content` of a chat choice's log-probabilities."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[WireAlternative] = []


class WireLogprobs(msgspec.Struct, frozen=True):
    """`logprobs` of a choice: `content` for chat, the four parallel lists for completions."""

    content: list[WireToken] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None

    def entries(self) -> list[Logprob] | None:
        """Both forms as one. Raises ValueError for lists of different lengths."""
        if self.tokens is not None:
            num = len(self.tokens)
            tops = [None] * num if self.top_logprobs is None else self.top_logprobs
            offsets = [None] * num if self.text_offset is None else self.text_offset
            return [
                Logprob(token, logprob, [TopLogprob(*pair) for pair in (top or {}).items()], None, offset)
                for token, logprob, top, offset in zip(self.tokens, self.token_logprobs, tops, offsets, strict=True)
            ]
        if self.content is None:
            return None
        return [
            Logprob(
                entry.token,
                entry.logprob,
                [TopLogprob(top.token, top.logprob, _bytes(top.bytes)) for top in entry.top_logprobs],
                _bytes(entry.bytes),
            )
            for entry in self.content
        ]


def _bytes(values: list[int] | None) -> bytes | None:
    return None if values is None else bytes(values)


class WireFunction(msgspec.Struct, frozen=True):
    """`function` of a call."""

    name: str = ""
    arguments: str = ""


class WireCall(msgspec.Struct, frozen=True):
    """A call, or a piece of it."""

    function: WireFunction
    index: int = 0
    id: str = ""


class WireContent(msgspec.Struct, frozen=True):
    """`delta` of a chat chunk, `message` of a whole chat answer."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[WireCall] | None = None


class WireChoice(msgspec.Struct, frozen=True):
    """A choice of either endpoint, of a chunk or of a whole answer."""

    index: int = 0
    delta: WireContent | None = None
    message: WireContent | None = None
    text: str | None = None
    logprobs: WireLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None = None

    def whole_text(self) -> str:
        """What the choice says, wherever it stands."""
        for content in (self.delta, self.message):
            if content is not None:
                return content.content or ""
        return self.text or ""

    @property
    def reasoning(self) -> str:
        """What the model thought."""
        content = self.delta or self.message
        return (content and content.reasoning) or ""

    @property
    def calls(self) -> list[WireCall]:
        """Tool calls, or their pieces."""
        content = self.delta or self.message
        return (content and content.tool_calls) or []

    def entries(self) -> list[Logprob] | None:
        """Raises ValueError."""
        return None if self.logprobs is None else self.logprobs.entries()


class ErrorDetails(msgspec.Struct, frozen=True):
    """What stands under `error`."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class WireAnswer(msgspec.Struct, frozen=True):
    """A whole answer or an event of a stream, of either endpoint, or an error."""

    id: str = ""
    model: str = ""
    choices: list[WireChoice] = []
    usage: ClientUsage | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    error: ErrorDetails | None = None
    paused: bool = False


class ModelEntries(msgspec.Struct, frozen=True):
    """The answer of GET /v1/models."""

    data: list[ModelEntry]


class RequestEntries(msgspec.Struct, frozen=True):
    """The answer of GET /v1/requests."""

    data: list[LiveRequest]


class StatusEntry(msgspec.Struct, frozen=True):
    """The answer of /health and /ready."""

    status: str = ""
    reason: str = ""


class VersionEntry(msgspec.Struct, frozen=True):
    """The answer of /version."""

    version: str


class DetokenizedEntry(msgspec.Struct, frozen=True):
    """The answer of /detokenize."""

    prompt: str
