"""The worker actor: a thread that takes plans from the call board, launches them, and publishes results.

The step loop is a thread of its own with blocking doorbells; the process's asyncio loop serves control messages only.
A plan that is there is launched before the step before it has ended; results are published in the order of the plans.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

import msgspec

from ..errors import EndOfStream, StaleEpoch, WouldBlock
from ..execution.pending_step import LOOK_AGAIN_S
from ..mailbox.messages.steps import StepPlan
from ..shm_queue import BoardReader, BoardWriter, Phase, ProgressLine
from .step_pipeline import Runner, StepPipeline

_PUBLISH_TIMEOUT_S = 60.0
"""Results have a slot for every plan in flight, so a wait for one means that the scheduler does not move."""


class EpochEnds(NamedTuple):
    """A rank's ends of the boards of one epoch."""

    epoch: int
    call_board: BoardReader
    result_board: BoardWriter | None
    """Of rank 0; the others compute the same steps and tell nobody."""


class WorkerActor:
    """One rank. `load()` builds the runner in the step thread: a CUDA context belongs to the thread that uses it.

    An epoch ends when its call board does, for the scheduler is gone: the rows are dropped, the weights stay, and the
    rank waits for the boards of the next one.
    """

    def __init__(
        self, name: str, load: Callable[[], Runner], progress: ProgressLine, stop_fd: int, *, pipeline_depth: int
    ) -> None:
        """`stop_fd`: the eventfd that interrupts a call board's blocking receive (its `wake_fd`); `pipeline_depth`:
        steps in flight, at most: with so many launched no plan can come before a result is published."""
        self.name = name
        self._load = load
        self._progress = progress
        self._stop_fd = stop_fd
        self._pipeline_depth = pipeline_depth
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
        pipeline = StepPipeline(runner)
        try:
            while True:
                record = self._next_record(runner, ends.call_board, pipeline)
                if record is None:
                    self._publish_oldest(ends, pipeline, encoder)
                    continue
                plan = decoder.decode(record)
                if plan.epoch != ends.epoch:
                    raise StaleEpoch(plan.epoch, ends.epoch)
                self._progress.mark(phase=Phase.STEPPING, step=plan.step)
                pipeline.launch(plan)
        except EndOfStream:
            while pipeline.num_pending:  # the board has a slot for each; whoever reads it may be gone
                self._publish_oldest(ends, pipeline, encoder)
            runner.clear()
        finally:
            ends.call_board.detach()
            if ends.result_board is not None:
                ends.result_board.detach()

    def _next_record(self, runner: Runner, call_board: BoardReader, pipeline: StepPipeline) -> bytes | None:
        """The next plan; None when the oldest step's result is there, or is the next thing that can come.

        Raises EndOfStream."""
        if not pipeline.num_pending:
            while not call_board.num_waiting() and runner.use_idle_time():
                pass
            return call_board.receive()
        if pipeline.is_held:
            if pipeline.num_pending > 1:
                return None  # the masks follow from the results before
            while not pipeline.go_on():
                time.sleep(LOOK_AGAIN_S)
        if pipeline.is_oldest_computed_here:
            return None  # whoever waits for its tokens is not to wait for the next step too
        while pipeline.num_pending < self._pipeline_depth:
            try:
                return call_board.receive_nowait()  # before a result that is there: the device waits for it
            except WouldBlock:
                if pipeline.is_oldest_done():
                    return None
                time.sleep(LOOK_AGAIN_S)  # a device has no descriptor to be waited for beside the board's
        return None

    def _publish_oldest(self, ends: EpochEnds, pipeline: StepPipeline, encoder: msgspec.msgpack.Encoder) -> None:
        result = pipeline.collect()
        if ends.result_board is not None:
            num_plans_waiting = pipeline.num_pending + ends.call_board.num_waiting()
            result = msgspec.structs.replace(result, num_plans_waiting=num_plans_waiting)
            ends.result_board.publish(encoder.encode(result), _PUBLISH_TIMEOUT_S, lambda _: "scheduling")
        self._progress.mark(phase=Phase.STEPPING if pipeline.num_pending else Phase.IDLE)

    def _report(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        def settle() -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        self._loop.call_soon_threadsafe(settle)
