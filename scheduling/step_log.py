"""Steps in flight, and how many of them were overlapped by their successor's plan."""

from __future__ import annotations

from collections import deque

from ..errors import ProtocolViolation


class _Step:
    """A planned step. `has_successor` is None until its result is in."""

    __slots__ = ("has_successor", "runs", "step")

    def __init__(self, step: int, runs: bytes) -> None:
        self.step, self.runs = step, runs
        self.has_successor: bool | None = None


class StepLog:
    """The steps of one epoch whose result or whose successor is still to come, oldest first.

    Step N is *steady* if plan N+1 has the same rows, that is the same runs in the same order: nothing ended, nothing
    was admitted or preempted between, so plan N+1 could have been published before N ended. It is *overlapped* if it is
    steady and the worker found plan N+1 on its board when step N ended. Both are counted once, when the later of plan
    N+1 and result N is known; steps cut off by the end of the epoch are not counted. At depth 1 a steady step is never
    overlapped.
    """

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque()
        self.num_in_flight = 0
        self.num_planned = 0
        self.num_steady = 0
        self.num_overlapped = 0

    def plan(self, step: int, runs: bytes) -> None:
        """Step `step` was planned: `runs` as in its plan."""
        self._steps.append(_Step(step, runs))
        self.num_in_flight += 1
        self.num_planned += 1
        self._settle()

    def complete(self, step: int, has_successor: bool) -> None:
        """The result of `step` came; `has_successor`: the next plan was waiting when it ended.

        Results come in the order of the plans. Raises ProtocolViolation otherwise.
        """
        if not self.num_in_flight:
            raise ProtocolViolation(f"result of step {step}, but no step is in flight")
        expected = self._steps[-self.num_in_flight]
        if expected.step != step:
            raise ProtocolViolation(f"result of step {step}, step {expected.step} is the oldest in flight")
        expected.has_successor = has_successor
        self.num_in_flight -= 1
        self._settle()

    def forget(self) -> None:
        """The epoch is over: nothing is in flight."""
        self._steps.clear()
        self.num_in_flight = 0

    def _settle(self) -> None:
        while len(self._steps) >= 2 and self._steps[0].has_successor is not None:
            done, following = self._steps.popleft(), self._steps[0]
            if done.runs == following.runs:
                self.num_steady += 1
                self.num_overlapped += bool(done.has_successor)
