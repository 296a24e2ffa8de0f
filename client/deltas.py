"""What the client gives its callers: deltas of a stream, whole answers, and the small endpoints' answers."""

from __future__ import annotations

import msgspec


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Tokens of the prompt that came from the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Drafts that were verified: those that were accepted, and those that were not."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class ClientUsage(msgspec.Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    """None: there were no drafts."""


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    data: bytes | None = None
    """The token's exact bytes; chat alone has them."""


class Logprob(msgspec.Struct, frozen=True):
    """The token at a position, in the same form for both endpoints."""

    token: str
    logprob: float | None
    """None for the first token of an echoed prompt; natural logarithm, -9999 stands for minus infinity."""
    top: list[TopLogprob] = []
    """As the server ordered them."""
    data: bytes | None = None
    """The token's exact bytes; chat alone has them."""
    text_offset: int | None = None
    """Where it begins in the text [characters]; completions alone have it."""


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token that stands, or might have stood, at a position of the prompt."""

    logprob: float
    rank: int | None = None
    """Among all tokens, 1 for the most likely."""
    decoded_token: str | None = None


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""For each token of the prompt by token id: itself and the most likely ones; None for the first."""


class CallPiece(msgspec.Struct, frozen=True):
    """What arrived of a tool call; `id` and `name` come with its first piece."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


class CallMade(msgspec.Struct, frozen=True):
    """A tool call of an answer; `arguments` is JSON text, cut off if the answer was."""

    id: str
    name: str
    arguments: str


class ClientDelta(msgspec.Struct, frozen=True):
    """What arrived of one choice since its last delta.

    A choice's last one has `finish_reason`; the stream's last one has `usage`, of all choices together.
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage: ClientUsage | None = None
    """With `continuous_usage_stats` the usage so far, in every delta."""
    logprobs: list[Logprob] | None = None
    """One entry a token, if asked for."""
    prompt_token_ids: list[int] | None = None
    """In the first delta; of a completion with several choices, in each choice's first."""
    request_id: str = ""
    choice: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    """Where `prompt_token_ids` are, if asked for."""
    is_paused: bool = False
    """It ends a session's turn, and the session goes on with the next input."""
    reasoning: str = ""
    """Chat: what the model thinks, which is no part of the text."""
    tool_calls: list[CallPiece] = []


class Choice(msgspec.Struct, frozen=True):
    """One whole answer of a request."""

    text: str
    finish_reason: str
    index: int = 0
    stop_reason: int | str | None = None
    token_ids: list[int] = []
    logprobs: list[Logprob] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    reasoning: str = ""
    tool_calls: list[CallMade] = []


class Answer(msgspec.Struct, frozen=True):
    """All answers of a request, in the order of `index`."""

    choices: list[Choice]
    usage: ClientUsage | None = None
    request_id: str = ""
    model: str = ""
    ignored_fields: tuple[str, ...] = ()
    """Fields of the request that the server does not know: a misspelt one of `extra` shows here."""

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        """Of the first choice."""
        return self.choices[0].finish_reason

    @property
    def tool_calls(self) -> list[CallMade]:
        """Of the first choice."""
        return self.choices[0].tool_calls


class Tokens(msgspec.Struct, frozen=True):
    """The answer of /tokenize."""

    tokens: list[int]
    count: int = 0
    max_model_len: int | None = None
    token_strs: list[str] | None = None
    """Each token as the vocabulary writes it, if asked for."""


class ModelEntry(msgspec.Struct, frozen=True):
    """A model that the server has."""

    id: str
    created: int = 0
    owned_by: str = ""
    max_model_len: int | None = None
