"""What a frontend keeps of a streaming session beside the output of its present turn."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence

from ..errors import InvalidRequest, Overloaded
from ..mailbox.messages.requests import Finish, SessionInput

MAX_WAITING_INPUTS = 16
"""Inputs given ahead of the pause at which they go in."""


class SessionRecord:
    """Turns and inputs of one session. An input goes in at a pause: at the present one, or at the next."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        """A session that has waited so long for input ends."""
        self.token_ids = array("i")
        """Output of the turns that have ended."""
        self.pauses: list[int] = []
        """Output index behind each of them."""
        self.inputs: list[SessionInput] = []
        """Those that went in: input i at pauses[i]."""
        self.paused: Finish | None = None
        """How the last turn ended, while no input has come since."""
        self.paused_s = 0.0
        """When, by the monotonic clock."""
        self._waiting: deque[SessionInput] = deque()
        self._is_complete = False
        """The last input was given."""

    def give(self, given: SessionInput | None) -> SessionInput | None:
        """Take what a client gives; None: that no more comes. Returns what goes in now.

        Raises RequestError (409) behind the last input, Overloaded (429) if too much waits.
        """
        if self._is_complete:
            raise InvalidRequest("the session has got its last input", code="session_complete", status=409)
        if len(self._waiting) >= MAX_WAITING_INPUTS:
            raise Overloaded(
                f"{len(self._waiting):,} inputs of this session wait for its turns to end, as many as may; try again "
                "when one has ended",
                code="too_many_inputs",
                retry_after_s=1,
            )
        self._is_complete = given is None or given.is_last
        if given is None:
            return None
        self._waiting.append(given)
        return self._next()

    def pause(self, token_ids: Sequence[int], finish: Finish) -> SessionInput | None:
        """A turn with the output `token_ids` has ended. Returns the input that goes in now."""
        self.token_ids.extend(token_ids)
        self.pauses.append(len(self.token_ids))
        self.paused, self.paused_s = finish, time.monotonic()
        return self._next()

    @property
    def has_ended(self) -> bool:
        """It is paused, and was told that nothing more comes."""
        return self.paused is not None and self._is_complete

    def _next(self) -> SessionInput | None:
        if self.paused is None or not self._waiting:
            return None
        self.paused = None
        self.inputs.append(self._waiting.popleft())
        return self.inputs[-1]
