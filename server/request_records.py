"""What the server knows of each generating request: the part of its ledger that is before and behind the scheduler's.

Times are CLOCK_MONOTONIC in nanoseconds, the clock that the scheduler's ledgers have.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..actors.frontend_api import Delta

MAX_ENDED_CHOICES = 4096
"""Of requests that have ended and are still known; the last one always is."""


class ChoiceRecord:
    """What came of one choice."""

    __slots__ = ("finish_reason", "num_tokens", "sent_ns")

    def __init__(self) -> None:
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.sent_ns: int | None = None
        """Of a stream: when the client's connection had taken its end."""


class RequestRecord:
    """One request. `engine_ids`: what its prompts are called in the engine, in order; `num_choices`: of each."""

    def __init__(
        self,
        request_id: str,
        header_id: str,
        engine_ids: list[str],
        *,
        tenant: str,
        num_choices: int,
        streams: bool,
        arrival_ns: int,
    ) -> None:
        self.request_id, self.header_id, self.engine_ids = request_id, header_id, engine_ids
        self.tenant, self.num_choices, self.streams = tenant, num_choices, streams
        self.arrival_ns = arrival_ns
        """When its head had been read."""
        self.submitted_ns = time.monotonic_ns()
        """When its body had been read and understood."""
        self.ended_ns: int | None = None
        self.choices = [ChoiceRecord() for _ in range(len(engine_ids) * num_choices)]
        self._write_ns = 0
        self._writing_since_ns: int | None = None
        self._written_choice: ChoiceRecord | None = None

    def read(self, delta: Delta) -> None:
        """A delta goes into the answer; of a stream it is now being written."""
        choice = self.choices[delta.choice]
        choice.num_tokens += len(delta.token_ids)
        if delta.finish is not None:
            choice.finish_reason = delta.finish.reason
        if self.streams:
            self._writing_since_ns, self._written_choice = time.monotonic_ns(), choice

    def written(self) -> None:
        """The client's connection has taken the last delta."""
        if self._writing_since_ns is None or self._written_choice is None:
            return
        now_ns = time.monotonic_ns()
        self._write_ns += now_ns - self._writing_since_ns
        if self._written_choice.finish_reason is not None:
            self._written_choice.sent_ns = now_ns
        self._writing_since_ns = None

    def end(self) -> None:
        """The answer has been sent, or is given up."""
        self.written()
        self.ended_ns = time.monotonic_ns()

    def write_ns(self, now_ns: int) -> int:
        """How long a stream's deltas waited for the client's connection to take them."""
        return self._write_ns + (0 if self._writing_since_ns is None else now_ns - self._writing_since_ns)

    @property
    def num_tokens(self) -> int:
        """Of all choices, as far as they are in the answer."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def state(self) -> str:
        """`waiting` for a first token, `answering`, `sending` what is left, `ended`."""
        if self.ended_ns is not None:
            return "ended"
        if all(choice.finish_reason is not None for choice in self.choices):
            return "sending"
        return "answering" if self.num_tokens else "waiting"


class RequestRecords:
    """Those that live, and the last ones that have ended."""

    def __init__(self, max_ended_choices: int = MAX_ENDED_CHOICES) -> None:
        self._max_ended_choices = max_ended_choices
        self._num_ended_choices = 0
        self._live: dict[str, RequestRecord] = {}
        self._ended: dict[str, RequestRecord] = {}

    def begin(self, record: RequestRecord) -> None:
        """It lives until `end`."""
        self._live[record.request_id] = record

    def end(self, record: RequestRecord) -> None:
        """Called once, whatever ended it."""
        record.end()
        del self._live[record.request_id]
        self._ended[record.request_id] = record
        self._num_ended_choices += len(record.choices)
        while self._num_ended_choices > self._max_ended_choices and len(self._ended) > 1:
            oldest = self._ended.pop(next(iter(self._ended)))
            self._num_ended_choices -= len(oldest.choices)

    def live(self) -> Iterable[RequestRecord]:
        """In the order in which they came."""
        return list(self._live.values())

    def find(self, name: str) -> list[RequestRecord]:
        """Those that a client may mean: the one with the id that stands in its answer, or else all that were sent with
        this X-Request-Id, the last one first."""
        record = self._live.get(name) or self._ended.get(name)
        if record is not None:
            return [record]
        newest_first = (*reversed(self._live.values()), *reversed(self._ended.values()))
        return [record for record in newest_first if record.header_id == name]
