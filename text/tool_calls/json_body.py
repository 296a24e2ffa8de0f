"""Arguments that a model writes as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .body import Reading
from .json_scan import JsonScanner
from .pattern import WHITE_SPACE


class JsonBody:
    """A JSON value: an object is given out as it comes and as the model wrote it, not checked.

    Models write other values, too; these are held back until they are whole. Of a string that holds an object its
    content is given out; null, and nothing before a stop, are an object without members; what else there is stays.
    """

    def __init__(self, stops: Sequence[str], *, is_in_object: bool = False) -> None:
        """`is_in_object`: behind the value comes the rest of the call's object, which is passed over."""
        self._stops = tuple(stops)
        self._value = JsonScanner(stops)
        self._rest = JsonScanner(stops, depth=1) if is_in_object else None
        self._is_object: bool | None = None
        """None: the value has not begun."""
        self._num_scanned = 0
        """Characters of a value that is held back."""

    def read(self, text: str, is_last: bool) -> Reading:
        num_read, arguments = 0, ""
        if self._is_object is None:
            num_read = len(text) - len(text.lstrip(WHITE_SPACE))
            if num_read == len(text) or (not is_last and self._may_stop(text[num_read:])):
                return Reading("", num_read, False)
            if text.startswith(self._stops, num_read):
                return Reading("{}", num_read, True)
            self._is_object = text[num_read] == "{"
        if not self._value.is_done:
            arguments, num_read = self._read_value(text, num_read, is_last)
            if not self._value.is_done:
                return Reading(arguments, num_read, False)
        if self._rest is None:
            return Reading(arguments, num_read, True)
        num_read = self._rest.scan(text, num_read, is_last)
        return Reading(arguments, num_read, self._rest.is_done)

    def _may_stop(self, text: str) -> bool:
        return any(stop.startswith(text) and stop != text for stop in self._stops)

    def _read_value(self, text: str, start: int, is_last: bool) -> tuple[str, int]:
        """The text to give out of the value, and up to where `text` is used up."""
        end = self._value.scan(text, start + self._num_scanned, is_last)
        if self._is_object:
            return text[start:end], end
        if self._value.is_done or is_last:
            self._num_scanned = 0
            return as_arguments(text[start:end]), end
        self._num_scanned = end - start
        return "", start


def as_arguments(value: str) -> str:
    """A JSON value as the text of arguments; one that is cut off stays as it is."""
    try:
        decoded = json.loads(value or "null")
        if isinstance(decoded, str) and isinstance(json.loads(decoded or "{}"), dict):
            return decoded.encode().decode() or "{}"
    except (ValueError, RecursionError):
        # No JSON, or with half of a surrogate pair, which stays escaped.
        return value
    return "{}" if decoded is None else value


def json_text(value: object) -> str:
    """The JSON text of a decoded value; half of a surrogate pair in it stays escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
