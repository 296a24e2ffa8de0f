"""Formats of strings: those that answers can be held to, and what the backends leave out of them."""

from __future__ import annotations

from ..errors import GrammarRefused
from .json_text import JsonValue

_KNOWN = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_REAL_DAY = f"^(?:[0-9]{{4}}-(?:0[13-9]|1[0-2])-|[0-9]{{4}}-02-(?:[01][0-9]|2[0-8])|{_LEAP_YEAR}-02-29)"
"""A text that begins with a date of the calendar, if it begins with one at all."""
_NO_LEAP_SECOND = "^[^:]*:[0-9]{2}:[0-5]"
"""Whether there is one at 23:59:60 depends on the time zone: they are left out."""

_NARROWER = {"date": (_REAL_DAY,), "time": (_NO_LEAP_SECOND,), "date-time": (_REAL_DAY, _NO_LEAP_SECOND)}


def narrow_format(place: str, schema: dict[str, JsonValue]) -> None:
    """Add to a schema with `format` what the backends leave out of it. Raises GrammarRefused for one that is unknown;
    formats of other types than strings (`int32`) say nothing about JSON."""
    name = schema.get("format")
    types = schema.get("type", "string")
    if not isinstance(name, str) or "string" not in (types if isinstance(types, list) else [types]):
        return
    if name not in _KNOWN:
        raise GrammarRefused(f"{place}: format {name[:100]!r} is not supported; supported: {', '.join(_KNOWN)}")
    patterns = _NARROWER.get(name, ())
    if not patterns:
        return
    further = schema.get("allOf")
    added: list[JsonValue] = [{"pattern": pattern} for pattern in patterns]
    schema["allOf"] = [*(further if isinstance(further, list) else []), *added]
