"""What a reasoning parser gives out."""

from __future__ import annotations

import msgspec

from ..tool_calls.deltas import Content


class Reasoning(msgspec.Struct, frozen=True, tag=True):
    """A piece of the reasoning; never empty."""

    text: str


Piece = Reasoning | Content


class Pieces:
    """Collects pieces; what is of one kind and comes together is one piece."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def give(self, kind: type[Reasoning] | type[Content], text: str) -> None:
        """Adds text, if there is any."""
        if not text:
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, kind):
            self._pieces[-1] = kind(last.text + text)
        else:
            self._pieces.append(kind(text))

    def take(self) -> list[Piece]:
        """What was given since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces
