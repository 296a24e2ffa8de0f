"""Steps in flight, and how many of them were overlapped by their successor's plan."""

from __future__ import annotations

from collections import deque

from ..errors import ProtocolViolation


class _Step:
    """A planned step. `end_ns` is None until its result is in."""

    __slots__ = ("end_ns", "now_ns", "runs", "step")

    def __init__(self, step: int, runs: bytes, now_ns: int) -> None:
        self.step, self.runs, self.now_ns = step, runs, now_ns
        self.end_ns: int | None = None


class StepLog:
    """The steps of one epoch whose result or whose successor is still to come, oldest first.

    Step N is *steady* if plan N+1 has the same rows, that is the same runs in the same order: nothing ended, nothing
    was admitted or preempted between, so plan N+1 could have been made before N ended. It is *overlapped* if it is
    steady and plan N+1 was made, by its `now_ns`, before `end_ns` of result N. Both are counted once, when the later
    of plan N+1 and result N is known; steps cut off by the end of the epoch are not counted. At depth 1 a steady step
    is never overlapped.
    """

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque()
        self.num_in_flight = 0
        self.num_planned = 0
        self.num_steady = 0
        self.num_overlapped = 0

    def plan(self, step: int, runs: bytes, now_ns: int) -> None:
        """Step `step` was planned: `runs` as in its plan."""
        self._steps.append(_Step(step, runs, now_ns))
        self.num_in_flight += 1
        self.num_planned += 1
        self._settle()

    def complete(self, step: int, end_ns: int) -> None:
        """The result of `step` came; results come in the order of the plans. Raises ProtocolViolation otherwise."""
        if not self.num_in_flight:
            raise ProtocolViolation(f"result of step {step}, but no step is in flight")
        expected = self._steps[-self.num_in_flight]
        if expected.step != step:
            raise ProtocolViolation(f"result of step {step}, step {expected.step} is the oldest in flight")
        expected.end_ns = end_ns
        self.num_in_flight -= 1
        self._settle()

    def forget(self) -> None:
        """The epoch is over: nothing is in flight."""
        self._steps.clear()
        self.num_in_flight = 0

    def _settle(self) -> None:
        while len(self._steps) >= 2 and self._steps[0].end_ns is not None:
            done, following = self._steps.popleft(), self._steps[0]
            if done.runs == following.runs:
                self.num_steady += 1
                self.num_overlapped += following.now_ns < (done.end_ns or 0)
