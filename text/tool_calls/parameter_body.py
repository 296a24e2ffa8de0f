"""Arguments that a model writes one by one, as plain text between markers."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .body import Reading
from .form import ParameterForm
from .pattern import SPACE, Ahead, Answer, Either, End, Found, Maybe, Pattern, match, search
from .tools import JSON_TYPES, type_of

LINE_BREAK = Maybe((Maybe(("\r",)), "\n"))
PYTHON_LITERALS = {"True": ("true", "boolean"), "False": ("false", "boolean"), "None": ("null", "null")}
"""As JSON, and its type: templates render the calls of the history with values in Python's form."""


class ParameterBody:
    """Parameters as the members of a JSON object.

    A value of a parameter that can only be a string is given out as it comes. Other values are held back until they are
    whole: if one is JSON of a type that the schema allows, it stays as it is, else it is a string. The object is closed
    when the call ends; of a call that is cut off, what had come stays, and of a value that is held back nothing.
    """

    def __init__(self, form: ParameterForm, types: Mapping[str, frozenset[str]]) -> None:
        self._form = form
        self._types = types
        self._begin: Pattern = (SPACE, form.begin, form.key, *form.after_key)
        ends: tuple[Pattern, ...] = ((form.begin,), *((end,) for end in form.call_ends), (End(),))
        self._end: Pattern = (form.end, SPACE, Ahead((Either(ends),)))
        if form.is_value_in_lines:
            self._begin += (LINE_BREAK,)
            self._end = (LINE_BREAK, *self._end)
        self._key: str | None = None
        """Of the parameter whose value is read."""
        self._num_parameters = 0
        self._num_searched = 0
        """Characters of a value held back in which its end is not."""

    def read(self, text: str, is_last: bool) -> Reading:
        pieces: list[str] = []
        num_read = 0
        while True:
            if self._key is not None:
                arguments, num_read, is_over = self._read_value(text, num_read, is_last)
                pieces.append(arguments)
                if not is_over:
                    return Reading("".join(pieces), num_read, False)
            found = match(self._begin, text, num_read, False)
            if found is Answer.MAY_COME:
                return Reading("".join(pieces), num_read, False)
            if not isinstance(found, Found):
                pieces.append("}" if self._num_parameters else "{}")
                return Reading("".join(pieces), num_read, True)
            num_read = found.end
            self._key = (found.name or "").strip()
            if self._is_string:
                pieces.append(self._opening() + '"')

    @property
    def _is_string(self) -> bool:
        return self._types_of_value == frozenset({"string"})

    @property
    def _types_of_value(self) -> frozenset[str]:
        return self._types.get(self._key or "", JSON_TYPES)

    def _opening(self) -> str:
        """What stands before the value in the JSON text."""
        self._num_parameters += 1
        return ("{" if self._num_parameters == 1 else ", ") + json.dumps(self._key, ensure_ascii=False) + ": "

    def _read_value(self, text: str, start: int, is_last: bool) -> tuple[str, int, bool]:
        """The JSON text to give out, up to where `text` is used up, and whether the value is over."""
        place, found = search(self._end, text, start + self._num_searched, is_last)
        is_over = isinstance(found, Found)
        if is_last and not is_over:
            # A marker that is cut off is not the value's.
            place, _ = search(self._end, text, start + self._num_searched, False)
        value = text[start:place]
        if self._is_string:
            arguments = _escaped(value) + ('"' if is_over else "")
        elif is_over:
            arguments = self._opening() + _as_json(value, self._types_of_value)
        else:
            self._num_searched = place - start
            return "", start, False
        if not isinstance(found, Found):
            return arguments, place, False
        self._key, self._num_searched = None, 0
        return arguments, found.end, True


def _escaped(text: str) -> str:
    """The text as it stands within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(value: str, types: frozenset[str]) -> str:
    """The JSON text of a value, by the JSON types that it may have."""
    plain = value.strip()
    literal, literal_type = PYTHON_LITERALS.get(plain, ("", ""))
    if literal_type in types and types != JSON_TYPES:
        return literal
    try:
        decoded = json.loads(plain, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    found = type_of(decoded)
    is_allowed = found in types or (found == "integer" and "number" in types)
    return plain if found != "string" and is_allowed else json.dumps(value, ensure_ascii=False)


def _refuse(constant: str) -> object:
    """NaN and Infinity, which are no JSON."""
    raise ValueError(constant)
