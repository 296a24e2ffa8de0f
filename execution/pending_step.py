"""A step between its launch and its result.

A runner whose device works on its own returns from `launch` as soon as the step is queued there, so that the next one
can be queued behind it before the first has ended. Where the step is computed by the caller's thread it has ended when
`launch` returns.

A step with constrained rows is held: the masks that it samples under follow from the results before it, so it goes on
when these are published, and nothing is launched behind it until it has gone on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ..mailbox.messages.steps import StepResult

LOOK_AGAIN_S = 20e-6
"""Between two looks at a device, or at memory that another process writes: neither can be waited for."""


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


def ended_here(step: PendingStep) -> bool:
    """Whether the caller's thread has computed it, the rest of a held one too."""
    return isinstance(step.rest if isinstance(step, HeldStep) else step, EndedStep)


class HeldStep:
    """A step of which a part is launched by `go_on` only: that behind the forward pass at least."""

    def __init__(self, launch_rest: Callable[[], PendingStep | None]) -> None:
        """launch_rest: returns None while it would have to wait, and is then called again; it raises what a launch
        raises."""
        self._launch_rest = launch_rest
        self.rest: PendingStep | None = None
        """Launched by `go_on`."""

    @property
    def is_held(self) -> bool:
        """Whether `go_on` has yet to launch the rest."""
        return self.rest is None

    def go_on(self) -> bool:
        """Launch the rest, unless that would have to wait; whether it is launched."""
        if self.rest is None:
            self.rest = self._launch_rest()
        return self.rest is not None

    def is_done(self) -> bool:
        return self.rest is not None and self.rest.is_done()

    def result(self) -> StepResult:
        while not self.go_on():
            time.sleep(LOOK_AGAIN_S)
        assert self.rest is not None
        return self.rest.result()
