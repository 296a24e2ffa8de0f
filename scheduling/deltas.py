"""What leaves for the tokenizers: at most one unsent delta a request, later tokens merge into it.

A token that is no more than a token costs nothing here until it leaves: what a row has sent is a number beside what it
knows. Only what says more (log-probabilities, the end, a resume) is an object.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

import msgspec
import numpy as np

from ..mailbox.messages.admission import TokenDeltas
from ..mailbox.messages.requests import Finish, Refused, TokenLogprobs
from ..mailbox.messages.transfers import LoadBlocks
from .prompt_logprobs import GatheredLogprobs
from .request import Request, RequestKey
from .row_arrays import ONE, RowArrays, RowIndexes

_NOBODY = -1
MAX_PROMPT_VALUES = 1 << 20
"""Numbers in the prompt log-probabilities of one message, unless those of one request alone are more: some 10 MiB."""


class Outgoing(msgspec.Struct, frozen=True):
    """Messages to send now, by tokenizer: one `TokenDeltas` each at most."""

    deltas: dict[str, TokenDeltas]
    refused: dict[str, list[Refused]]
    has_more: bool = False
    """Some deltas were left for a message of their own: collect again."""
    loads: list[LoadBlocks] = []
    """For the connector."""


class _Delta:
    """The unsent tokens of one attempt of one request."""

    __slots__ = (
        "attempt",
        "cached_tokens",
        "finish",
        "key",
        "logprobs",
        "pause",
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
        self.pause: Finish | None = None
        self.prompt_logprobs: GatheredLogprobs | None = None
        """In the delta that begins with the first token, which stays so when later tokens merge into it."""
        self.prompt_token_ids: list[int] = []
        """Only beside `prompt_logprobs`."""


class _Heads(NamedTuple):
    """What the deltas of some rows say beside tokens and positions. Lists that nobody changes."""

    rows: RowIndexes
    request_ids: list[str]
    choices: list[int]
    attempts: list[int]
    cached_tokens: list[int]


class Outbox:
    """Deltas and refusals that were not collected yet. Of a request without a tokenizer nothing is kept."""

    def __init__(self, rows: RowArrays[Request]) -> None:
        self._rows = rows
        self._deltas: dict[RequestKey, _Delta] = {}
        self._refused: dict[str, list[Refused]] = {}
        self._tokenizers: list[str] = []
        """Names by index: few, and the same in each epoch."""
        self._tokenizer_of = np.full(rows.max_num_seqs, _NOBODY, np.int32)
        """[max_num_seqs] index of the tokenizer of each row in use."""
        self._request_ids = [""] * rows.max_num_seqs
        self._choices = np.zeros(rows.max_num_seqs, np.int32)
        self._attempts = np.zeros(rows.max_num_seqs, np.int32)
        self._cached_tokens = np.zeros(rows.max_num_seqs, np.int32)
        self._first_positions = np.zeros(rows.max_num_seqs, np.int32)
        """[max_num_seqs] position in the sequence of the first output token."""
        self._heads: _Heads | None = None
        """Of the rows whose tokens left last: as long as the same rows go on they are made once."""

    def place(self, request: Request) -> None:
        """The request has a row now, or another attempt or tokenizer than when it got it."""
        row = request.row
        assert row is not None
        self._heads = None
        self._request_ids[row], self._choices[row] = request.key
        self._attempts[row] = request.attempt
        self._cached_tokens[row] = request.cached_tokens or 0
        self._first_positions[row] = request.num_prompt_tokens - request.first_output_index
        self._tokenizer_of[row] = _NOBODY if request.tokenizer is None else self._index_of(request.tokenizer)

    def absorb(self, request: Request) -> None:
        """Make a delta of the tokens that a running request has not sent: it will lose its row, or say more."""
        rows, row = self._rows, request.row
        if row is None or rows.num_sent[row] == rows.num_tokens[row]:
            return
        num_sent, num_tokens = int(rows.num_sent[row]), int(rows.num_tokens[row])
        rows.num_sent[row] = num_tokens
        if request.tokenizer is not None:
            delta = self._open(request, num_sent - int(self._first_positions[row]))
            delta.token_ids.extend(request.token_ids[num_sent:num_tokens])

    def add_token(
        self, request: Request, logprobs: TokenLogprobs | None, prompt_logprobs: GatheredLogprobs | None = None
    ) -> None:
        """The last known token of a running request is new, and comes with log-probabilities; `prompt_logprobs` leave
        with it, and are not kept."""
        assert request.row is not None
        self.absorb(request)
        if request.tokenizer is None or (logprobs is None and prompt_logprobs is None):
            return
        delta = self._open(request, request.output_index - 1)
        if logprobs is not None:
            delta.logprobs.append(logprobs)
        if prompt_logprobs is not None:
            delta.prompt_logprobs = prompt_logprobs
            delta.prompt_token_ids = request.token_ids[: request.num_prompt_tokens].tolist()

    def finish(self, request: Request, finish: Finish) -> None:
        """The terminal mark; it rides on the unsent tokens, if there are any."""
        self.absorb(request)
        if request.tokenizer is not None:
            self._open(request, request.output_index).finish = finish

    def pause(self, request: Request, finish: Finish) -> None:
        """A session's turn is over; the mark rides on the unsent tokens. Nothing follows before it was sent: the input
        that is to be answered next comes when it was seen."""
        self.absorb(request)
        if request.tokenizer is not None:
            self._open(request, request.output_index).pause = finish

    def resend(self, request: Request, position: int = 0) -> None:
        """A new attempt took the request, no session, over, and has the output before `position`: send the rest again.

        `position` is not before the resumed tokens, for an attempt never has less than the one before it.
        """
        self._deltas.pop(request.key, None)
        if request.row is not None:
            self._rows.num_sent[request.row] = self._rows.num_tokens[request.row]
            self.place(request)
        if position < request.num_output_tokens:
            delta = self._open(request, position)
            delta.token_ids = request.token_ids[request.num_prompt_tokens + position :].tolist()
            delta.logprobs = (request.logprobs or [])[max(0, position - request.num_resumed_tokens) :]

    def has_pause(self, key: RequestKey) -> bool:
        """The end of the request's turn was not collected yet."""
        delta = self._deltas.get(key)
        return delta is not None and delta.pause is not None

    def drop(self, key: RequestKey) -> None:
        """Nobody waits for the request's unsent tokens any more."""
        self._deltas.pop(key, None)

    def forget(self, tokenizer: str) -> None:
        """It died: nothing that was to be said to it is sent."""
        self._deltas = {key: delta for key, delta in self._deltas.items() if delta.tokenizer != tokenizer}
        self._refused.pop(tokenizer, None)
        self._heads = None
        self._tokenizer_of[self._tokenizer_of == self._index_of(tokenizer)] = _NOBODY

    def refuse(self, tokenizer: str, refused: Refused) -> None:
        """The request is not served."""
        self._refused.setdefault(tokenizer, []).append(refused)

    def collect(self, find: Callable[[str, int], Request | None], blocked: Container[str] = ()) -> Outgoing:
        """Everything unsent but the deltas for tokenizers in `blocked`, and what would make a message too large; it
        counts as sent from now on. `find`: the live request with this id and choice."""
        for key in self._deltas:  # a request with a delta has all its unsent tokens in it
            request = find(*key)
            if request is not None:
                self.absorb(request)
        has_more, by_tokenizer = self._choose_deltas(blocked)
        messages = {name: _message(deltas) for name, deltas in by_tokenizer.items()}
        for name, rows in self._unsent_rows():
            if name not in blocked:
                messages[name] = self._add_rows(messages.get(name), rows)
        outgoing = Outgoing(messages, self._refused, has_more)
        self._refused = {}
        return outgoing

    def _choose_deltas(self, blocked: Container[str]) -> tuple[bool, dict[str, list[_Delta]]]:
        """Take out what goes now, by tokenizer; True if something is left for a message of its own."""
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
        self._deltas = kept
        return has_more, by_tokenizer

    def _unsent(self) -> RowIndexes:
        """Rows that know tokens that they have not sent, as they were taken."""
        rows = self._rows.in_order()
        is_unsent = self._rows.num_tokens[rows] > self._rows.num_sent[rows]
        return rows if np.count_nonzero(is_unsent) == len(rows) else rows[is_unsent]

    def _unsent_rows(self) -> list[tuple[str, RowIndexes]]:
        """Those by tokenizer."""
        rows = self._unsent()
        if not len(rows):
            return []
        owners = self._tokenizer_of[rows]
        found = []
        for index, name in enumerate(self._tokenizers):
            is_owner = owners == index
            count = np.count_nonzero(is_owner)
            if count:
                found.append((name, rows if count == len(rows) else rows[is_owner]))
        return found

    def _add_rows(self, message: TokenDeltas | None, rows: RowIndexes) -> TokenDeltas:
        """The unsent tokens of `rows` behind what `message` has; they count as sent."""
        arrays, sent = self._rows, self._rows.num_sent[rows]
        num_new = arrays.num_tokens[rows] - sent
        if np.add.reduce(num_new) == len(rows):
            token_ids = arrays.tail[rows, arrays.tail_at[rows] - ONE].reshape(-1, 1).tolist()
        else:
            starts = sent.tolist()
            token_ids = [
                request.token_ids[start:].tolist() for request, start in zip(arrays.of(rows), starts, strict=True)
            ]
        arrays.num_sent[rows] = arrays.num_tokens[rows]
        positions = (sent - self._first_positions[rows]).tolist()
        heads = self._heads_of(rows)
        if message is None:
            return TokenDeltas(
                heads.request_ids, heads.choices, heads.attempts, positions, token_ids, heads.cached_tokens
            )
        return msgspec.structs.replace(
            message,
            request_ids=message.request_ids + heads.request_ids,
            choices=message.choices + heads.choices,
            attempts=message.attempts + heads.attempts,
            positions=message.positions + positions,
            token_ids=message.token_ids + token_ids,
            cached_tokens=message.cached_tokens + heads.cached_tokens,
        )

    def _heads_of(self, rows: RowIndexes) -> _Heads:
        if self._heads is None or not (self._heads.rows is rows or np.array_equal(self._heads.rows, rows)):
            ids = self._request_ids
            self._heads = _Heads(
                rows,
                [ids[row] for row in rows.tolist()],
                self._choices[rows].tolist(),
                self._attempts[rows].tolist(),
                self._cached_tokens[rows].tolist(),
            )
        return self._heads

    def _index_of(self, tokenizer: str) -> int:
        if tokenizer not in self._tokenizers:
            self._tokenizers.append(tokenizer)
        return self._tokenizers.index(tokenizer)

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
        pauses={row: delta.pause for row, delta in enumerate(deltas) if delta.pause is not None},
        finishes={row: delta.finish for row, delta in enumerate(deltas) if delta.finish is not None},
        logprobs={row: delta.logprobs for row, delta in enumerate(deltas) if delta.logprobs},
        prompt_logprobs={
            row: delta.prompt_logprobs.entries(delta.prompt_token_ids)
            for row, delta in enumerate(deltas)
            if delta.prompt_logprobs is not None
        },
    )
