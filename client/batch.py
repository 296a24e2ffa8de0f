"""Many requests at once: bounded, in order, each with an answer or an error of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

import msgspec

from ..errors import InvalidRequest, Overloaded, RequestError
from .batch_progress import BatchProgress
from .delta_stream import DeltaStream
from .deltas import Answer
from .whole_answers import assemble

P = TypeVar("P")


ProgressSink = Callable[[BatchProgress], None]


class BatchResult(msgspec.Struct, frozen=True):
    """What became of one prompt: its answer, or the error of its request."""

    index: int
    outcome: Answer | RequestError

    @property
    def error(self) -> RequestError | None:
        return self.outcome if isinstance(self.outcome, RequestError) else None

    @property
    def answer(self) -> Answer:
        """Raises the error of the request."""
        if isinstance(self.outcome, RequestError):
            raise self.outcome
        return self.outcome

    @property
    def text(self) -> str:
        """Of the first choice. Raises the error of the request."""
        return self.answer.text


async def run_batch(
    prompts: Iterable[P],
    ask: Callable[[P, int], DeltaStream],
    each: Sequence[object] | None,
    progress: bool | ProgressSink,
    max_concurrency: int,
) -> list[BatchResult]:
    """`ask(prompt, index)` makes the request. `prompts` is read as there is room, so it may be long.

    A request that meets a full queue waits and is sent again as long as others of the batch are under way, which will
    make room. Raises ValueError if `each` has another length than the prompts, and what `prompts` or `progress` raise;
    then, and if it is cancelled, all requests are aborted.
    """
    num_prompts = len(prompts) if isinstance(prompts, Sized) else None
    if each is not None and num_prompts is not None and len(each) != num_prompts:
        raise ValueError(f"each has {len(each)} entries for {num_prompts} prompts")
    if isinstance(prompts, str):
        raise TypeError("prompts is one text; give a list of prompts")
    if max_concurrency < 1:
        raise ValueError(f"max_concurrency is {max_concurrency}, at least 1 is needed")
    with _shown(progress) as sink:
        batch = _Batch(enumerate(prompts), ask, num_prompts, sink)
        num_workers = max_concurrency if num_prompts is None else min(max_concurrency, num_prompts)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(num_workers):
                    group.create_task(batch.work())
        except ExceptionGroup as failures:  # of the caller's own: the iterable of prompts, or the progress function
            raise failures.exceptions[0] from None
    return [batch.results[index] for index in sorted(batch.results)]


def _shown(progress: bool | ProgressSink) -> AbstractContextManager[ProgressSink | None]:
    if callable(progress):
        return nullcontext(progress)
    if not progress:
        return nullcontext(None)
    from .progress_bar import ProgressBar  # rich takes a moment to load

    return ProgressBar()


class _Batch(Generic[P]):
    """The state that the workers of one batch share."""

    def __init__(
        self,
        prompts: Iterator[tuple[int, P]],
        ask: Callable[[P, int], DeltaStream],
        num_prompts: int | None,
        sink: ProgressSink | None,
    ) -> None:
        self._prompts, self._ask, self._num_prompts, self._sink = prompts, ask, num_prompts, sink
        self._begin_s = time.monotonic()
        self._num_failed = self._num_tokens = self._num_running = 0
        self.results: dict[int, BatchResult] = {}

    async def work(self) -> None:
        """Take prompts until there are none left."""
        for index, prompt in self._prompts:
            try:
                outcome: Answer | RequestError = await self._answer(index, prompt)
            except RequestError as error:
                outcome = error
                self._num_failed += 1
            self.results[index] = BatchResult(index, outcome)
            self._tell()

    async def _answer(self, index: int, prompt: P) -> Answer:
        while True:
            try:
                stream = self._ask(prompt, index)
            except (TypeError, ValueError, IndexError) as error:  # a prompt that cannot even be sent
                raise InvalidRequest(f"prompt {index}: {error}") from error
            self._num_running += 1
            try:
                return await self._read(stream)
            except Overloaded as error:
                if self._num_running <= 1:
                    raise
                pause_s = error.retry_after_s or 1
            finally:
                self._num_running -= 1
            await asyncio.sleep(pause_s)

    async def _read(self, stream: DeltaStream) -> Answer:
        deltas = []
        async with stream:
            async for delta in stream:
                deltas.append(delta)
                self._num_tokens += len(delta.token_ids)
                self._tell()
        return assemble(deltas, stream.head.model, stream.head.ignored_fields)

    def _tell(self) -> None:
        if self._sink is not None:
            seconds = time.monotonic() - self._begin_s
            self._sink(BatchProgress(len(self.results), self._num_failed, self._num_prompts, self._num_tokens, seconds))
