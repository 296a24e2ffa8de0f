"""The worker actor: a thread that takes plans from the call board, runs them, and publishes results.

The step loop is a thread of its own with blocking doorbells; the process's asyncio loop serves control messages only.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple, Protocol

import msgspec

from ..errors import ActorFault, EndOfStream, StaleEpoch
from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..shm_queue import BoardReader, BoardWriter, Phase, ProgressLine
from ..topology.boards import MAX_ERROR_CHARS

_PUBLISH_TIMEOUT_S = 60.0
"""Results have a slot for every plan in flight, so a wait for one means that the scheduler does not move."""


class Runner(Protocol):
    """What runs plans: a model on a device."""

    def run(self, plan: StepPlan) -> StepResult:
        """Raises ProtocolViolation for a plan that contradicts the rows; anything else is a failed step."""
        ...

    def warm_up(self) -> None: ...

    def clear(self) -> None:
        """Forget all rows."""
        ...


class EpochEnds(NamedTuple):
    """A rank's ends of the boards of one epoch."""

    epoch: int
    call_board: BoardReader
    result_board: BoardWriter


class WorkerActor:
    """One rank. `load()` builds the runner in the step thread: a CUDA context belongs to the thread that uses it.

    An epoch ends when its call board does, for the scheduler is gone: the rows are dropped, the weights stay, and the
    rank waits for the boards of the next one.
    """

    def __init__(self, name: str, load: Callable[[], Runner], progress: ProgressLine, stop_fd: int) -> None:
        """`stop_fd`: the eventfd that interrupts a call board's blocking receive (its `wake_fd`)."""
        self.name = name
        self._load = load
        self._progress = progress
        self._stop_fd = stop_fd
        self._epochs: SimpleQueue[EpochEnds | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    async def start(self) -> None:
        """Load the model and warm up; returns when the rank takes plans. Raises what loading raised."""
        self._thread.start()
        await self._ready

    def attach(self, ends: EpochEnds) -> None:
        """Boards of the next epoch, which belong to the worker from here on."""
        self._epochs.put(ends)

    async def run(self) -> None:
        """Returns when the loop was stopped; raises what ended it otherwise."""
        await self._ended

    def stop(self) -> None:
        """Ask the loop to end behind the step that it is in."""
        self._epochs.put(None)
        os.eventfd_write(self._stop_fd, 1)

    def close(self) -> None:
        if self._thread.is_alive():
            self.stop()
            self._thread.join(timeout=5.0)

    def _main(self) -> None:
        waiting = self._ready
        try:
            self._progress.mark(phase=Phase.LOADING)
            runner = self._load()
            self._progress.mark(phase=Phase.WARMING)
            runner.warm_up()
            self._progress.mark(phase=Phase.IDLE)
            self._report(self._ready, None)
            waiting = self._ended
            while (ends := self._epochs.get()) is not None:
                self._run_epoch(runner, ends)
            self._report(self._ended, None)
        except BaseException as error:  # handed to the loop, which ends the process with it
            self._report(waiting, error)

    def _run_epoch(self, runner: Runner, ends: EpochEnds) -> None:
        decoder = msgspec.msgpack.Decoder(StepPlan)
        encoder = msgspec.msgpack.Encoder()
        progress = self._progress
        steps = _Steps(runner)
        try:
            while True:
                plan = decoder.decode(ends.call_board.receive())
                if plan.epoch != ends.epoch:
                    raise StaleEpoch(plan.epoch, ends.epoch)
                progress.mark(phase=Phase.STEPPING, step=plan.step)
                result = msgspec.structs.replace(steps.run(plan), num_plans_waiting=ends.call_board.num_waiting())
                ends.result_board.publish(encoder.encode(result), _PUBLISH_TIMEOUT_S, lambda _: "scheduling")
                progress.mark(phase=Phase.IDLE, step=plan.step)
        except EndOfStream:
            runner.clear()
        finally:
            ends.call_board.detach()
            ends.result_board.detach()

    def _report(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        def settle() -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        self._loop.call_soon_threadsafe(settle)


class _Steps:
    """Runs plans; behind a step that failed nothing is run until a fresh plan, for later plans build on it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._has_failed = False

    def run(self, plan: StepPlan) -> StepResult:
        """One result for each plan. Raises ActorFault, which no other batch would be spared."""
        if plan.is_fresh:
            self._runner.clear()
            self._has_failed = False
        if self._has_failed:
            return _no_rows(plan, StepOutcome.VOID, "")
        try:
            return self._runner.run(plan)
        except ActorFault:
            raise
        except Exception as error:  # the scheduler finds out whose it is
            self._has_failed = True
            traceback.print_exc(file=sys.stderr)
            return _no_rows(plan, StepOutcome.FAILED, f"{type(error).__name__}: {error}")


def _no_rows(plan: StepPlan, outcome: StepOutcome, error: str) -> StepResult:
    now_ns = time.monotonic_ns()
    return StepResult(
        epoch=plan.epoch,
        step=plan.step,
        runs=b"",
        positions=b"",
        token_ids=b"",
        start_ns=now_ns,
        end_ns=now_ns,
        outcome=outcome,
        error=error[:MAX_ERROR_CHARS],
    )
