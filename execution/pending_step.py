"""A step between its launch and its result.

A runner whose device works on its own returns from `launch` as soon as the step is queued there, so that the next one
can be queued behind it before the first has ended. Where the step is computed by the caller's thread it has ended when
`launch` returns.
"""

from __future__ import annotations

from typing import Protocol

from ..mailbox.messages.steps import StepResult


class PendingStep(Protocol):
    """A step that was launched."""

    def is_done(self) -> bool:
        """Whether `result` would return, or raise, without waiting."""
        ...

    def result(self) -> StepResult:
        """Wait for the step's end; called once, in the order of the launches. Raises what the step raised."""
        ...


class EndedStep:
    """A step that was computed while it was launched."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def is_done(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self._result
