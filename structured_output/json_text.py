"""How JSON is written in constrained answers.

White space between the parts of a value is allowed, but bounded: a model that loves line feeds would write them until
`max_tokens`. A place takes `MAX_SPACES` characters of it, enough for a line feed and ten levels of indentation.
There is none before and none behind the whole value. `\\/` is written as `/`.
"""

from __future__ import annotations

import msgspec

MAX_SPACES = 41

_OPTIONS = {
    "whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{MAX_SPACES}}}",
    "json_allow_general_unicode_escapes": True,
}

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def json_rule(schema: JsonValue) -> str:
    """The rule's body that is a JSON value of the schema, an object or a truth value that has been checked."""
    if schema is False:
        schema = {"enum": []}
    if not isinstance(schema, dict):
        schema = {}
    encoded = msgspec.json.encode({**schema, "x-guidance": _OPTIONS}).decode()
    return f"%json {encoded}"
