"""From the bytes of a request body to typed fields.

Every way in which they can be wrong is an InvalidRequest that names the field.
"""

from __future__ import annotations

import re
from typing import TypeVar
from urllib.parse import quote

import msgspec

from ..errors import InvalidRequest

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)
NULL = msgspec.Raw(b"null")
_NULL = re.compile(rb"\s*null\s*")

MAX_IGNORED_NAMES = 32
MAX_IGNORED_NAME_CHARS = 64


class RequestBody(msgspec.Struct, frozen=True):
    """A JSON object whose values are not decoded yet."""

    body: bytes
    fields: dict[str, msgspec.Raw]

    def decode(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The fields that the decoder's struct names; others are passed over. Raises InvalidRequest with `param`."""
        try:
            return decoder.decode(self.body)
        except msgspec.ValidationError as error:
            raise wrong_field(error) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"the request body is not valid JSON: {error}", code="invalid_json") from None


def parse_body(body: bytes) -> RequestBody:
    """Raises InvalidRequest if `body` is no JSON object (NaN, Infinity and broken UTF-8 are not JSON)."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the request body must be a JSON object: {error}", code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    return RequestBody(body, fields)


def wrong_field(error: Exception, prefix: str = "") -> InvalidRequest:
    """A decoding error as an answer; `prefix` is the path of the value that was decoded, in the request."""
    text = str(error)
    place = _PLACE.search(text)
    path = "" if place is None else place[1]
    param = f"{prefix}{'.' if prefix and path and not path.startswith('[') else ''}{path}"
    reason = text if place is None else text[: place.start()]
    return InvalidRequest(f"{param or 'request body'}: {reason}", param=param or None)


def decode_field(raw: msgspec.Raw | bytes, decoder: msgspec.json.Decoder[T], param: str) -> T:
    """One value of the request. Raises InvalidRequest naming `param`."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise wrong_field(error, param) from None


def is_null(raw: msgspec.Raw) -> bool:
    """The value of a field that is as good as left out."""
    return _NULL.fullmatch(raw) is not None


def ignored_header(names: list[str]) -> str:
    """Value of `x-ignored-fields`: the names in the request's order, percent-encoded, not more than fit a header."""
    shown = [quote(printable_name(name), safe="") for name in names[:MAX_IGNORED_NAMES]]
    if len(names) > MAX_IGNORED_NAMES:
        shown.append("...")
    return ", ".join(shown)


def printable_name(name: str) -> str:
    """`name` cut to the length of a field name that is worth showing."""
    return name[:MAX_IGNORED_NAME_CHARS]
