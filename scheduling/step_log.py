"""Steps in flight, and how many of them were overlapped by their successor's plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from ..errors import ProtocolViolation
from .request import Request
from .row_arrays import Int32s, RowIndexes


class PlannedStep:
    """A step whose plan was published, with its n rows in plan order.

    `num_changes`: rows taken and given back before it, as `RowArrays` counts them.

    `runs`: int64 bytes [n], as in the plan; None once it failed or was not run. `yielding_rows`, `yielding_runs`: the k
    rows of which a token is expected. `num_tokens`: to be computed, but for drafts that the worker guesses.
    `num_drafts`: [k]; None without any. `has_successor` is None until the result is in.
    """

    __slots__ = (
        "has_successor",
        "num_changes",
        "num_drafts",
        "num_tokens",
        "requests",
        "runs",
        "step",
        "yielding_rows",
        "yielding_runs",
    )

    def __init__(
        self,
        step: int,
        runs: bytes,
        requests: Sequence[Request],
        yielding_rows: RowIndexes,
        yielding_runs: bytes,
        num_changes: int,
        num_tokens: int,
        num_drafts: Int32s | None = None,
    ) -> None:
        self.step, self.requests = step, requests
        self.runs: bytes | None = runs
        self.yielding_rows, self.yielding_runs, self.num_drafts = yielding_rows, yielding_runs, num_drafts
        self.num_changes, self.num_tokens = num_changes, num_tokens
        self.has_successor: bool | None = None


class StepLog:
    """The steps of one epoch whose result or whose successor is still to come, oldest first.

    Step N is *steady* if plan N+1 has the same rows, that is the same runs in the same order: nothing ended, nothing
    was admitted or preempted between, so plan N+1 could have been published before N ended. It is *overlapped* if it is
    steady and the worker found plan N+1 on its board when step N ended. Both are counted once, when the later of plan
    N+1 and result N is known; steps that failed or were not run are not counted, nor those cut off by the end of the
    epoch. At depth 1 a steady step is never overlapped.
    """

    def __init__(self) -> None:
        self._steps: deque[PlannedStep] = deque()
        self.num_in_flight = 0
        self.num_planned = 0
        self.num_steady = 0
        self.num_overlapped = 0

    @property
    def num_ended(self) -> int:
        """Steps planned that are not in flight."""
        return self.num_planned - self.num_in_flight

    def plan(self, step: PlannedStep) -> None:
        """A plan was made."""
        self._steps.append(step)
        self.num_in_flight += 1
        self.num_planned += 1
        self._settle()

    def complete(self, step: int, has_successor: bool) -> PlannedStep:
        """The result of `step` came; `has_successor`: the next plan was waiting when it ended.

        Results come in the order of the plans. Raises ProtocolViolation otherwise.
        """
        completed = self._complete(step, has_successor)
        self._settle()
        return completed

    def fail(self, step: int) -> Sequence[Request]:
        """`step` raised, and those behind it will not be run. Returns the requests of its rows. Raises as above."""
        requests = self._complete(step, False).requests
        for spoiled in islice(reversed(self._steps), self.num_in_flight + 1):
            spoiled.runs, spoiled.requests = None, ()
        self._settle()
        return requests

    def void(self, step: int) -> None:
        """`step`, behind one that raised, was not run. Raises as above."""
        self._complete(step, False)
        self._settle()

    def runs_in_flight(self, num_steps: int) -> bytes | None:
        """The runs that all steps in flight have, if those are so many and expect one token of each run; else None."""
        if not self.num_in_flight == num_steps == len(self._steps):
            return None
        runs = self._steps[0].runs
        are_same = all(
            step.runs == runs and step.yielding_runs == runs and step.num_drafts is None for step in self._steps
        )
        return runs if are_same else None

    def repeat(self, num_steps: int, num_changes: int, *, has_successor: bool) -> None:
        """The results of the so many oldest steps came, and after each a plan like the last one was made.

        Only if `runs_in_flight` are those that run now; `num_changes`: as in `PlannedStep`.
        """
        last = self._steps[-1]
        assert last.runs is not None
        for step in range(last.step + 1 + max(0, num_steps - self.num_in_flight), last.step + 1 + num_steps):
            self._steps.popleft()
            runs = last.yielding_runs
            self._steps.append(
                PlannedStep(step, runs, last.requests, last.yielding_rows, runs, num_changes, last.num_tokens)
            )
        self.num_planned += num_steps
        self.num_steady += num_steps
        self.num_overlapped += num_steps * has_successor

    def requests_in_flight(self) -> Iterator[Request]:
        """The requests of the steps in flight, oldest step first, each as often as it has a row."""
        for index in range(len(self._steps) - self.num_in_flight, len(self._steps)):
            yield from self._steps[index].requests

    def forget(self) -> None:
        """The epoch is over: nothing is in flight."""
        self._steps.clear()
        self.num_in_flight = 0

    def _complete(self, step: int, has_successor: bool) -> PlannedStep:
        if not self.num_in_flight:
            raise ProtocolViolation(f"result of step {step}, but no step is in flight")
        expected = self._steps[-self.num_in_flight]
        if expected.step != step:
            raise ProtocolViolation(f"result of step {step}, step {expected.step} is the oldest in flight")
        expected.has_successor = has_successor
        self.num_in_flight -= 1
        return expected

    def _settle(self) -> None:
        while len(self._steps) >= 2 and self._steps[0].has_successor is not None:
            done, following = self._steps.popleft(), self._steps[0]
            if done.runs is not None and done.runs == following.runs:
                self.num_steady += 1
                self.num_overlapped += bool(done.has_successor)
