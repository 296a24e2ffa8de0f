"""The verifying worker of the scheduler's tests, and the boards between it and the scheduler actor."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np

from callboard.errors import WouldBlock
from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.request import RequestKey
from callboard.tests.scheduling.fake_worker import FakeWorker


class CallBoard:
    """The writing end, and what the worker has not read yet. `is_trial`: a plan made now may leave out rows."""

    def __init__(self, depth: int, is_trial: Callable[[], bool] = lambda: False) -> None:
        self.plans: deque[bytes] = deque()
        self.trial_steps: set[int] = set()
        self._num_slots = depth + 2
        self._is_trial = is_trial

    def publish_nowait(self, record: bytes) -> None:
        assert len(self.plans) < self._num_slots, "the scheduler runs ahead of the pipeline's depth"
        self.plans.append(record)
        if self._is_trial():
            self.trial_steps.add(msgspec.msgpack.decode(record, type=StepPlan).step)

    def detach(self) -> None:
        """What was published stays until the supervisor makes new boards."""


class ResultBoard:
    """The reading end, with a doorbell that the event loop watches."""

    def __init__(self) -> None:
        self.silent: deque[bytes] = deque()
        self.results: deque[bytes] = deque()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._close = weakref.finalize(self, os.close, self.bell)  # of a world that ends, no scheduler detaches
        self.is_detached = False

    def fileno(self) -> int:
        return self.bell

    def publish(self, result: StepResult) -> None:
        """The result reaches the reader."""
        self.hold(result)
        self.ring()

    def hold(self, result: StepResult) -> None:
        """The result is made, and reaches the reader with `ring`."""
        self.silent.append(msgspec.msgpack.encode(result))

    def ring(self) -> None:
        """The oldest result that is held reaches the reader."""
        self.results.append(self.silent.popleft())
        os.eventfd_write(self.bell, 1)

    def receive_nowait(self) -> bytes:
        assert not self.is_detached
        if not self.results:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.bell)
            raise WouldBlock
        return self.results.popleft()

    def detach(self) -> None:
        if not self.is_detached:
            self.is_detached = True
            self._close()


class Worker(FakeWorker):
    """Attached to a call board; notes in `blamed` who stood alone in a step that raised."""

    def __init__(
        self,
        limits: SchedulerLimits,
        admits: dict[RequestKey, Admit],
        epoch: int,
        call_board: CallBoard,
        raises: dict[RequestKey, int],
        blamed: set[RequestKey],
    ) -> None:
        super().__init__(limits, admits, epoch)
        self.call_board, self.raises, self.blamed = call_board, raises, blamed
        self.may_starve = call_board.trial_steps

    def work_one(self) -> StepResult:
        encoded = self.call_board.plans.popleft()
        result = self.work(encoded, 0)
        if result.outcome is StepOutcome.FAILED:
            runs = np.frombuffer(msgspec.msgpack.decode(encoded, type=StepPlan).runs, "<i8").tolist()
            if len(runs) == 1:
                self.blamed.add(self.keys[runs[0]])
        return msgspec.structs.replace(result, num_plans_waiting=len(self.call_board.plans))
