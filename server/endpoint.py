"""What the server serves, as a table: routes, keys and /openapi.json are made from the same rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec
from aiohttp.typedefs import Handler

JSON = "application/json"
EVENTS = "text/event-stream"
METRICS_TEXT = "text/plain"

Content = Mapping[str, object]
"""Media type -> the type that is encoded in it, of a stream that of each event; `str` for text."""

_PATTERN = re.compile(r"\{(\w+):[^}]*\}")


class Parameter(msgspec.Struct, frozen=True):
    """A part of the path or the query."""

    name: str
    place: Literal["path", "query"]
    type: object
    description: str


class Endpoint(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: Literal["GET", "POST"]
    path: str
    """As aiohttp writes it: a parameter may have a pattern, `{model:.+}`."""
    handler: Handler
    """Its docstring tells what it does, after its method and path."""
    answers: Mapping[int, Content]
    """By status; errors of the usual shape are listed by `errors`."""
    errors: tuple[int, ...] = ()
    request: object | None = None
    """The type of the JSON body; None: there is none."""
    parameters: tuple[Parameter, ...] = ()
    needs_key: bool = False
    """Where the topology names a file with keys."""

    @property
    def template(self) -> str:
        """The path with its parameters' names alone."""
        return _PATTERN.sub(r"{\1}", self.path)
