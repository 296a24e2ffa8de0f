"""The worker actor: a thread that takes plans from the call board, runs them, and publishes results.

The step loop is a thread of its own with blocking doorbells; the process's asyncio loop serves control messages only.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..errors import EndOfStream, StaleEpoch
from ..mailbox.messages.steps import StepPlan, StepResult
from ..shm_queue import BoardReader, BoardWriter, Phase, ProgressLine

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


class WorkerActor:
    """One rank. `load()` builds the runner in the step thread: a CUDA context belongs to the thread that uses it."""

    def __init__(
        self,
        name: str,
        load: Callable[[], Runner],
        call_board: BoardReader,
        result_board: BoardWriter,
        progress: ProgressLine,
        epoch: int,
        stop_fd: int,
    ) -> None:
        """`stop_fd`: the eventfd that interrupts the call board's blocking receive."""
        self.name = name
        self._load = load
        self._call_board = call_board
        self._result_board = result_board
        self._progress = progress
        self._epoch = epoch
        self._stop_fd = stop_fd
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    async def start(self) -> None:
        """Load the model and warm up; returns when the rank takes plans. Raises what loading raised."""
        self._thread.start()
        await self._ready

    async def run(self) -> None:
        """Returns when the loop was stopped; raises what ended it otherwise."""
        await self._ended

    def stop(self) -> None:
        """Ask the loop to end behind the step that it is in."""
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
            self._run_steps(runner)
            self._report(self._ended, None)
        except BaseException as error:  # handed to the loop, which ends the process with it
            self._report(waiting, error)

    def _run_steps(self, runner: Runner) -> None:
        decoder = msgspec.msgpack.Decoder(StepPlan)
        encoder = msgspec.msgpack.Encoder()
        progress = self._progress
        while True:
            try:
                plan = decoder.decode(self._call_board.receive())
            except EndOfStream:
                return
            if plan.epoch != self._epoch:
                raise StaleEpoch(plan.epoch, self._epoch)
            progress.mark(phase=Phase.STEPPING, step=plan.step)
            result = msgspec.structs.replace(runner.run(plan), num_plans_waiting=self._call_board.num_waiting())
            self._result_board.publish(encoder.encode(result), _PUBLISH_TIMEOUT_S, lambda _: "scheduling")
            progress.mark(phase=Phase.IDLE, step=plan.step)

    def _report(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        def settle() -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        self._loop.call_soon_threadsafe(settle)
