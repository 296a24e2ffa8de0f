"""What stands around the actors of a `World`: tokens, threads, sockets and a clock, all of them plain values."""

from __future__ import annotations

import codecs
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cache
from typing import Any, Generic

import tokenizers

from callboard.errors import EndOfStream, WouldBlock
from callboard.mailbox import Inbox
from callboard.mailbox.inbox import M
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.waiters import Waiters
from callboard.tests.scheduling.fake_model import EOS
from callboard.text import Tokenizer

TOKEN_BYTES = (b"", b"a", b"b", b"c", b"ab", b"bc", b"\xc3", b"\xa9", b" ")
"""By id; 0 is the end mark. Ids 6 and 7 together are one character."""


@cache
def make_tokenizer() -> Tokenizer:
    """A real byte-level tokenizer with those tokens."""
    names = ["<eos>", "a", "b", "c", "ab", "bc", "Ã", "©", "Ġ"]
    model = tokenizers.models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[("a", "b"), ("b", "c")])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, bos_token_id=None, eos_token_ids=(EOS,), chat_template=None, where="test")


def text_of(token_ids: list[int]) -> str:
    """What the ids spell."""
    return b"".join(TOKEN_BYTES[i] for i in token_ids).decode("utf-8", "replace")


def num_certain_chars(token_ids: list[int]) -> int:
    """Of what the ids spell, without a character that the next may complete."""
    data = b"".join(TOKEN_BYTES[i] for i in token_ids)
    return len(codecs.getincrementaldecoder("utf-8")("replace").decode(data))


def true_answer(
    token_ids: list[int], reason: str, stop_reason: int | None, sampling: SamplingParams
) -> tuple[list[int], str, str, int | str | None]:
    """(ids, text, finish reason, stop reason) of an answer, from how it ends without stop strings: brute force.

    A token that stops the answer has no text; a stop string that ends within `min_tokens` tokens counts for nothing.
    """
    keeps_stop = sampling.include_stop_str_in_output
    spelt = token_ids[:-1] if reason == "stop" and not keeps_stop else token_ids
    passed_by = num_certain_chars(spelt[: sampling.min_tokens])
    for count in range(sampling.min_tokens + 1, len(spelt) + 1):
        text = text_of(spelt[:count])
        ends: set[tuple[int, int, str]] = set()
        for stop in sampling.stop:
            start = text.find(stop, max(0, passed_by + 1 - len(stop)))
            ends |= {(start + len(stop), -len(stop), stop)} if start >= 0 else set()
        if ends:
            end, _, stop = min(ends)
            return token_ids[:count], text[: end if keeps_stop else end - len(stop)], "stop", stop
    return token_ids, text_of(spelt), reason, stop_reason


class Threads:
    """An executor whose work is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Any, Any]] = deque()

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, function, args))
        return future

    def run_one(self, index: int) -> None:
        future, function, args = self.waiting[index]
        del self.waiting[index]
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)

    def shutdown(self, **_: object) -> None:
        self.waiting.clear()


class Wire(Generic[M]):
    """The socket from one life of a sender to one life of a receiver, as the sender's outbox.

    It holds `capacity` messages until `deliver`. The receiver attaches it when it starts, or when it parts from the
    sender's life before; nobody attaches the wires to a dead receiver, and those fill up.
    """

    def __init__(self, sender: str, receiver: str, capacity: int) -> None:
        self.sender, self.receiver = sender, receiver
        self.messages: deque[M] = deque()
        self._capacity = capacity
        self._inbox: Inbox[M] | None = None
        self._is_closed = False
        self._waiters = Waiters()

    # The sender's

    def send_nowait(self, message: M) -> None:
        if self._is_closed:
            raise EndOfStream("this outbox is closed")
        if len(self.messages) >= self._capacity:
            raise WouldBlock
        self.messages.append(message)

    async def wait_room(self) -> None:
        while len(self.messages) >= self._capacity:
            if self._is_closed:
                raise EndOfStream("this outbox is closed")
            await self._waiters.wait()

    def close(self) -> None:
        """What was sent stays."""
        self._is_closed = True
        self._waiters.wake_all()

    # The world's

    def attach(self, inbox: Inbox[M]) -> None:
        """`inbox` reads this wire from now on."""
        inbox.attach_local(self.sender)
        self._inbox = inbox

    def cut(self) -> None:
        """One end is dead or has parted: nothing is delivered any more."""
        self._inbox = None

    @property
    def can_deliver(self) -> bool:
        return bool(self.messages) and self._inbox is not None and not self._inbox.is_full

    def deliver(self) -> None:
        """The oldest message reaches the inbox."""
        assert self._inbox is not None
        self._inbox.put_nowait(self.sender, self.messages.popleft())
        self._waiters.wake_all()

    def lose_tail(self, count: int) -> None:
        """The sender died with the last `count` messages still in its process."""
        for _ in range(min(count, len(self.messages))):
            self.messages.pop()


class Turn(Iterator[str]):
    """`itertools.cycle` with a place that can be seen."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._index = -1

    def __next__(self) -> str:
        self._index = (self._index + 1) % len(self._names)
        return self._names[self._index]


_STARTED_NS = time.monotonic_ns()


class Clock:
    """Stands where actors have the module `time`; it moves when the world says so.

    It begins at the event loop's time, the same for all worlds, and graces are long: no timer of an actor fires.
    """

    def __init__(self) -> None:
        self.now_ns = _STARTED_NS

    def monotonic_ns(self) -> int:
        return self.now_ns
