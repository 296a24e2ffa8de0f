"""Reasoning between two markers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import assert_never

from ..tool_calls.deltas import Content
from ..tool_calls.pattern import MAX_SPACE, SPACE, WHITE_SPACE, Ahead, Answer, Either, Found, Pattern, match, search
from .deltas import Piece, Pieces, Reasoning
from .styles import State, Tags


class _Part(enum.Enum):
    START = enum.auto()
    REASONING_START = enum.auto()
    REASONING = enum.auto()
    CONTENT_START = enum.auto()
    """Behind the end marker, where white space is dropped."""
    CONTENT = enum.auto()


class TagParser:
    """Reasoning and content, each without the white space between its text and the markers."""

    def __init__(self, style: Tags, state: State, ends_before: Sequence[str] = ()) -> None:
        """`ends_before`: markers that end the reasoning, too, and belong to the content."""
        self._opening: Pattern = (SPACE, style.begin)
        self._closing: Pattern = (Either(((style.end,), *((Ahead((marker,)),) for marker in ends_before))),)
        self._part = _Part.CONTENT if state == "closed" else _Part.START
        self._without_opening = _Part.REASONING_START if state == "open" else _Part.CONTENT
        self._pending = ""
        self._pieces = Pieces()

    def feed(self, text: str) -> list[Piece]:
        """What the next piece of the answer makes certain."""
        return self._run(text, False)

    def finish(self) -> list[Piece]:
        """The rest, when no more text comes."""
        return self._run("", True)

    def _run(self, text: str, is_last: bool) -> list[Piece]:
        self._pending += text
        while self._step(is_last):
            pass
        return self._pieces.take()

    def _step(self, is_last: bool) -> bool:
        """One move; False: more text is needed."""
        match self._part:
            case _Part.START:
                return self._read_start(is_last)
            case _Part.REASONING_START | _Part.CONTENT_START:
                return self._pass_space()
            case _Part.REASONING:
                return self._read_reasoning(is_last)
            case _Part.CONTENT:
                self._pieces.give(Content, self._pending)
                self._pending = ""
                return False
            case _:
                assert_never(self._part)

    def _read_start(self, is_last: bool) -> bool:
        found = match(self._opening, self._pending, 0, is_last)
        if found is Answer.MAY_COME:
            return False
        self._part = _Part.REASONING_START if isinstance(found, Found) else self._without_opening
        self._pending = self._pending[found.end if isinstance(found, Found) else 0 :]
        return True

    def _pass_space(self) -> bool:
        self._pending = self._pending.lstrip(WHITE_SPACE)
        if self._pending:
            self._part = _Part.REASONING if self._part is _Part.REASONING_START else _Part.CONTENT
        return bool(self._pending)

    def _read_reasoning(self, is_last: bool) -> bool:
        place, found = search(self._closing, self._pending, 0, is_last)
        text = self._pending[:place]
        space = 0 if is_last and found is Answer.NO else min(len(text) - len(text.rstrip(WHITE_SPACE)), MAX_SPACE)
        self._pieces.give(Reasoning, text[: place - space])
        if isinstance(found, Found):
            self._pending, self._part = self._pending[found.end :], _Part.CONTENT_START
            return True
        self._pending = self._pending[place - space :]
        return False
