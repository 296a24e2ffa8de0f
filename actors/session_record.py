"""What a frontend keeps of a streaming session beside the output of its present turn."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence

from ..errors import InvalidRequest, Overloaded
from ..mailbox.messages.requests import Finish, SessionInput, TokenPrompt

MAX_WAITING_INPUTS = 16
"""Inputs given ahead of the pause at which they go in."""


class SessionRecord:
    """Turns and inputs of one session. An input goes in at a pause: at the present one, or at the next."""

    def __init__(self, idle_s: float, max_waiting_bytes: int) -> None:
        self.max_waiting_bytes = max_waiting_bytes
        """Of the inputs that wait, together; one alone may be longer."""
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
        self._num_waiting_bytes = 0
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
        num_bytes = 0 if given is None else _num_bytes(given)
        if self._waiting and self._num_waiting_bytes + num_bytes > self.max_waiting_bytes:
            raise Overloaded(
                f"{self._num_waiting_bytes:,} bytes of input of this session wait for its turns to end, and this one "
                f"has {num_bytes:,}; together they may have {self.max_waiting_bytes:,} bytes "
                "(server.max_request_bytes); try again when a turn has ended",
                code="too_many_inputs",
                retry_after_s=1,
            )
        self._is_complete = given is None or given.is_last
        if given is None:
            return None
        self._waiting.append(given)
        self._num_waiting_bytes += num_bytes
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
        given = self._waiting.popleft()
        self._num_waiting_bytes -= _num_bytes(given)
        self.inputs.append(given)
        return given


def _num_bytes(given: SessionInput) -> int:
    """Of the text as UTF-8, or of the list of token ids."""
    if isinstance(given.prompt, TokenPrompt):
        return 8 * len(given.prompt.token_ids)
    text = given.prompt.text
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
