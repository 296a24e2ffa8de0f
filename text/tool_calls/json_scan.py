"""Where a JSON value ends, in text that comes in pieces."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[^A-Za-z0-9+\-.]")


class JsonScanner:
    """Follows strings and brackets; what else is wrong with the JSON is not looked at, so nothing is raised.

    A marker of `stops` outside a string, where no JSON has it, ends a value whose brackets are not all closed.
    """

    def __init__(self, stops: Sequence[str] = (), *, depth: int = 0) -> None:
        """`depth`: brackets that are open before the text; with any, what is scanned is the rest of that value."""
        self._stops = tuple(stops)
        self._longest_stop = max(map(len, self._stops), default=0)
        self._depth = depth
        self._is_in_string = False
        self._is_escaped = False
        self._is_scalar: bool | None = False if depth else None
        """None: the value has not begun."""
        self._is_waiting = False
        self.is_done = False

    def scan(self, text: str, start: int, is_last: bool) -> int:
        """Reads `text` from `start`, where the value begins or goes on; the index up to which it belongs to it.

        Where the index is not the end of the text and `is_done` is False, a stop may begin there: ask again from there
        with more text.
        """
        place = start
        self._is_waiting = False
        while place < len(text) and not self.is_done and not self._is_waiting:
            if self._is_in_string:
                place = self._string(text, place)
            elif self._is_scalar is None:
                self._is_scalar = text[place] not in '{["'
            elif self._is_scalar:
                place = self._scalar(text, place)
            else:
                place = self._between(text, place, is_last)
        return place

    def _string(self, text: str, place: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return place + 1
        found = _IN_STRING.search(text, place)
        if found is None:
            return len(text)
        if found.group() == "\\":
            self._is_escaped = True
        else:
            self._is_in_string = False
            self.is_done = not self._depth
        return found.end()

    def _scalar(self, text: str, place: int) -> int:
        found = _SCALAR_END.search(text, place)
        if found is None:
            return len(text)
        self.is_done = True
        return found.start()

    def _between(self, text: str, place: int, is_last: bool) -> int:
        """Outside strings: to behind the next character that counts, or before a stop."""
        found = _outside_strings(self._stops).search(text, place)
        if found is None:
            return len(text)
        character, place = found.group(), found.start()
        if any(text.startswith(stop, place) for stop in self._stops):
            self.is_done = True
            return place
        rest = text[place : place + self._longest_stop]
        if not is_last and any(stop.startswith(rest) for stop in self._stops):
            self._is_waiting = True
            return place
        if character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_done = self._depth <= 0
        return place + 1


@functools.lru_cache(maxsize=64)
def _outside_strings(stops: tuple[str, ...]) -> re.Pattern[str]:
    """Matches the characters outside strings that count."""
    return re.compile("[" + re.escape("".join(dict.fromkeys('{}[]"' + "".join(stop[0] for stop in stops)))) + "]")
