"""What a tool-call parser gives out."""

from __future__ import annotations

import msgspec


class Content(msgspec.Struct, frozen=True, tag=True):
    """A piece of the answer's text; never empty."""

    text: str


class CallBegun(msgspec.Struct, frozen=True, tag=True):
    """A call's first delta: `index` counts the calls of the answer from 0."""

    index: int
    id: str
    name: str


class ArgumentsPiece(msgspec.Struct, frozen=True, tag=True):
    """The next piece of the JSON text of the arguments of the call that was begun last; never empty."""

    index: int
    text: str


Delta = Content | CallBegun | ArgumentsPiece
