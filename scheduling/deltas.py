"""What leaves for the tokenizers: at most one unsent delta a request, later tokens merge into it."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from ..mailbox.messages.admission import TokenDeltas
from ..mailbox.messages.requests import Finish, Refused, TokenLogprobs
from .prompt_logprobs import GatheredLogprobs
from .request import Request, RequestKey

MAX_PROMPT_VALUES = 1 << 20
"""Numbers in the prompt log-probabilities of one message, unless those of one request alone are more: some 10 MiB."""


class Outgoing(msgspec.Struct, frozen=True):
    """Messages to send now, by tokenizer: one `TokenDeltas` each at most."""

    deltas: dict[str, TokenDeltas]
    refused: dict[str, list[Refused]]
    has_more: bool = False
    """Some deltas were left for a message of their own: collect again."""


class _Delta:
    """The unsent tokens of one attempt of one request."""

    __slots__ = (
        "attempt",
        "cached_tokens",
        "finish",
        "key",
        "logprobs",
        "position",
        "prompt_logprobs",
        "prompt_token_ids",
        "token_ids",
        "tokenizer",
    )

    def __init__(self, request: Request, position: int) -> None:
        self.key = request.key
        self.attempt = request.attempt
        assert request.tokenizer is not None
        self.tokenizer = request.tokenizer
        self.cached_tokens = request.cached_tokens or 0
        self.position = position
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish: Finish | None = None
        self.prompt_logprobs: GatheredLogprobs | None = None
        """In the delta that begins with the first token, which stays so when later tokens merge into it."""
        self.prompt_token_ids: list[int] = []
        """Only beside `prompt_logprobs`."""


class Outbox:
    """Deltas and refusals that were not collected yet. Of a request without a tokenizer nothing is kept."""

    def __init__(self) -> None:
        self._deltas: dict[RequestKey, _Delta] = {}
        self._refused: dict[str, list[Refused]] = {}

    def add_token(self, request: Request, prompt_logprobs: GatheredLogprobs | None = None) -> None:
        """The request's last known token is new; `prompt_logprobs` leave with it, and are not kept."""
        if request.tokenizer is None:
            return
        delta = self._open(request, request.num_output_tokens - 1)
        delta.token_ids.append(request.token_ids[-1])
        if request.logprobs is not None:
            delta.logprobs.append(request.logprobs[-1])
        if prompt_logprobs is not None:
            delta.prompt_logprobs = prompt_logprobs
            delta.prompt_token_ids = request.token_ids[: request.num_prompt_tokens]

    def finish(self, request: Request, finish: Finish) -> None:
        """The terminal mark; it rides on the unsent tokens, if there are any."""
        if request.tokenizer is not None:
            self._open(request, request.num_output_tokens).finish = finish

    def resend(self, request: Request, position: int = 0) -> None:
        """A new attempt took the request over, and has the output before `position`: send the rest again.

        `position` is not before the resumed tokens, for an attempt never has less than the one before it.
        """
        self._deltas.pop(request.key, None)
        if position < request.num_output_tokens:
            delta = self._open(request, position)
            delta.token_ids = request.token_ids[request.num_prompt_tokens + position :]
            delta.logprobs = (request.logprobs or [])[max(0, position - request.num_resumed_tokens) :]

    def drop(self, key: RequestKey) -> None:
        """Nobody waits for the request's unsent tokens any more."""
        self._deltas.pop(key, None)

    def forget(self, tokenizer: str) -> None:
        """It died: nothing that was to be said to it is sent."""
        self._deltas = {key: delta for key, delta in self._deltas.items() if delta.tokenizer != tokenizer}
        self._refused.pop(tokenizer, None)

    def refuse(self, tokenizer: str, refused: Refused) -> None:
        """The request is not served."""
        self._refused.setdefault(tokenizer, []).append(refused)

    def collect(self, blocked: Container[str] = ()) -> Outgoing:
        """Everything unsent but the deltas for tokenizers in `blocked`, and what would make a message too large; it
        counts as sent from now on."""
        by_tokenizer: dict[str, list[_Delta]] = {}
        num_values: dict[str, int] = {}
        kept: dict[RequestKey, _Delta] = {}
        has_more = False
        for key, delta in self._deltas.items():
            name = delta.tokenizer
            if name in blocked:
                kept[key] = delta
                continue
            if delta.prompt_logprobs is not None:
                num_before = num_values.get(name, 0)
                num_values[name] = num_before + delta.prompt_logprobs.num_values
                if num_before and num_values[name] > MAX_PROMPT_VALUES:
                    kept[key] = delta
                    has_more = True
                    continue
            by_tokenizer.setdefault(name, []).append(delta)
        messages = {name: _message(deltas) for name, deltas in by_tokenizer.items()}
        outgoing = Outgoing(messages, self._refused, has_more)
        self._deltas = kept
        self._refused = {}
        return outgoing

    def _open(self, request: Request, position: int) -> _Delta:
        delta = self._deltas.get(request.key)
        if delta is None or delta.attempt != request.attempt:
            delta = self._deltas[request.key] = _Delta(request, position)
        return delta


def _message(deltas: list[_Delta]) -> TokenDeltas:
    return TokenDeltas(
        request_ids=[delta.key[0] for delta in deltas],
        choices=[delta.key[1] for delta in deltas],
        attempts=[delta.attempt for delta in deltas],
        positions=[delta.position for delta in deltas],
        token_ids=[delta.token_ids for delta in deltas],
        cached_tokens=[delta.cached_tokens for delta in deltas],
        finishes={row: delta.finish for row, delta in enumerate(deltas) if delta.finish is not None},
        logprobs={row: delta.logprobs for row, delta in enumerate(deltas) if delta.logprobs},
        prompt_logprobs={
            row: delta.prompt_logprobs.entries(delta.prompt_token_ids)
            for row, delta in enumerate(deltas)
            if delta.prompt_logprobs is not None
        },
    )
