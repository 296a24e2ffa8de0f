"""How JSON is written in constrained answers.

White space between the parts of a value is what printers of JSON write: up to two spaces, or one line feed and
`MAX_INDENTATION` columns of indentation, eight levels of four. A small model that loves white space would write what it
is allowed at each place, a token a character, until `max_tokens`: no more than one line feed, and without one no run of
spaces. There is none before and none behind the whole value. A character is written as itself, or as `\\u0061` where
that is safe; never raw is DEL, and `\\/` is not allowed.
"""

from __future__ import annotations

import msgspec

MAX_INDENTATION = 32
MAX_SPACES = MAX_INDENTATION + 3
"""With the line feed, a carriage return and a space before them."""

_SPACES = rf"(\x20{{1,2}}|\x09|\x20?\x0D?\x0A[\x20\x09]{{0,{MAX_INDENTATION}}})"

_ESCAPES_BUT_CODES = 'nrbtf"\\'

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def json_rule(schema: JsonValue) -> str:
    """The rule's body that is a JSON value of the schema, an object or a truth value that has been checked."""
    if schema is False:
        schema = {"enum": []}
    if not isinstance(schema, dict):
        schema = {}
    escapes: dict[str, JsonValue] = {"json_allow_general_unicode_escapes": True}
    if _has_named_and_other_keys(schema):
        escapes = {"json_allowed_escapes": _ESCAPES_BUT_CODES}
    options: dict[str, JsonValue] = {"whitespace_pattern": _SPACES, **escapes}
    return f"%json {msgspec.json.encode({**schema, 'x-guidance': options}).decode()}"


def _has_named_and_other_keys(schema: JsonValue) -> bool:
    """Whether an object may have keys beside those that are named. Then no character may be written as `\\u0061`:
    llguidance would take a named key in such a spelling for another one, with any value."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            names_keys = any(part.get(keyword) for keyword in ("properties", "patternProperties", "required"))
            if names_keys and part.get("additionalProperties", True) is not False:
                return True
        if isinstance(part, dict | list):
            waiting += part.values() if isinstance(part, dict) else part
    return False
