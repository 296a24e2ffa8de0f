"""Where an answer is written as JSON: small ones on the loop, those with many log-probabilities in a thread.

A prompt of 4,096 tokens with 20 alternatives at each is 90,000 entries and 5 MB; streams and `/health` go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ..actors.frontend_api import Delta
from .answer_objects import Answer

INLINE_ENTRIES = 4_000
"""Log-probabilities; measured on 2 cores, an entry takes 1 to 2 us to build and to encode."""

_encoder = msgspec.json.Encoder()


class AnswerEncoder:
    """One thread: more would only share the interpreter with the loop, and hold more answers at once."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answer")

    async def encode(self, make: Callable[[], bytes], deltas: Sequence[Delta]) -> bytes:
        """`make()`, which writes `deltas`. Raises what it raises. A caller that is cancelled does not wait: it must not
        use again what `make` uses."""
        if num_entries(deltas) <= INLINE_ENTRIES:
            return make()
        return await asyncio.get_running_loop().run_in_executor(self._executor, make)

    def close(self) -> None:
        """What the thread has not begun is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def num_entries(deltas: Sequence[Delta]) -> int:
    """Log-probabilities in them, of outputs and prompts: each token has as many alternatives as any other."""
    number = 0
    for delta in deltas:
        for tokens in (delta.logprobs, None if delta.prompt is None else delta.prompt.logprobs):
            if tokens:
                number += len(tokens) * (1 + len(tokens[0].top))
    return number


def encode_answer(answer: Answer) -> bytes:
    """JSON, a choice at a time: the encoder holds the interpreter throughout a call."""
    choices = [msgspec.Raw(_encoder.encode(choice)) for choice in answer.choices]
    return _encoder.encode(msgspec.structs.replace(answer, choices=choices))
