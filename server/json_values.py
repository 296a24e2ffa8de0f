"""How many values a JSON text holds, told without decoding it.

Decoding takes time by the value and holds the interpreter all the while, in whatever thread it runs; counting goes over
the bytes at memory speed. So a large body is counted before anything decodes it.
"""

from __future__ import annotations

from ..errors import InvalidRequest

MAX_STRINGS = 100_000
"""Of one request, names included."""
MAX_OTHER_VALUES = 100_000
"""Lists, objects and what is in them, token ids of a prompt apart."""


def split_strings(text: bytes) -> list[bytes]:
    """`text` at its quotes: what stands outside of strings is at the even places. Anything, if it is no JSON."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_strings = text.count(b'"') // 2
    if num_strings > MAX_STRINGS:
        raise _too_many(num_strings, "strings, names included", MAX_STRINGS)
    return text.split(b'"')


def check_num_values(text: bytes, max_model_len: int) -> None:
    """Raises InvalidRequest for more than a request can have a use for."""
    outside = b"".join(split_strings(text)[::2])
    num_values = sum(outside.count(mark) for mark in (b",", b"[", b"{"))
    limit = MAX_OTHER_VALUES + max_model_len
    if num_values > limit:
        raise _too_many(num_values, "values", limit)


def _too_many(number: int, what: str, limit: int) -> InvalidRequest:
    return InvalidRequest(f"the request body holds {number:,} {what}; the limit is {limit:,}", code="too_many_values")
