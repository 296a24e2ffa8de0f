"""What follows the head of a call: its arguments, read as they come and given out as JSON text."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Reading(msgspec.Struct, frozen=True):
    """A step of a body: the JSON text that came, how many characters of the text it has used up, whether it ended."""

    arguments: str
    num_read: int
    is_done: bool


class Body(Protocol):
    """Reads the arguments of one call."""

    def read(self, text: str, is_last: bool) -> Reading:
        """`text` begins with the first character that was not used up; `is_last`: no more comes."""
        ...
