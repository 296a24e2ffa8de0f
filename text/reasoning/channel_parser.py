"""Reasoning and content in messages with channels (harmony)."""

from __future__ import annotations

from ..tool_calls.deltas import Content
from ..tool_calls.pattern import SPACE, Ahead, Answer, Either, Found, Maybe, Pattern, Run, match, search
from .deltas import Piece, Pieces, Reasoning
from .styles import Channels, State

_HEAD: Pattern = (
    Maybe(("<|start|>assistant",)),
    Maybe((" to=", Run(r"[^<\s]", 160, 1))),
    "<|channel|>",
    SPACE,
    Run(r"[a-z]", 32, 1, is_name=True),
    Run(r"[^<]", 200),
    Maybe(("<|constrain|>", Run(r"[^<]", 64))),
    "<|message|>",
)
_END: Pattern = (
    Either((("<|end|>",), ("<|return|>",), ("<|call|>",), (Ahead(("<|start|>",)),), (Ahead(("<|channel|>",)),))),
)


class ChannelParser:
    """Messages without their heads; one with a recipient, which is a call, is content as it was written.

    Between two messages of one kind comes a line break. Text without a head is content; a head that is cut off at the
    end is dropped.
    """

    def __init__(self, style: Channels, state: State) -> None:
        self._style = style
        self._pieces = Pieces()
        self._pending = ""
        self._is_in_message = state != "may_open"
        self._kind: type[Reasoning] | type[Content] = Reasoning if state == "open" else Content
        self._is_call = False
        self._separator = ""
        """Comes before the message's first text."""
        self._kinds_seen: set[type[Reasoning] | type[Content]] = set()
        self._num_passed = 0

    def feed(self, text: str) -> list[Piece]:
        """What the next piece of the answer makes certain."""
        return self._run(text, False)

    def finish(self) -> list[Piece]:
        """The rest, when no more text comes."""
        return self._run("", True)

    def _run(self, text: str, is_last: bool) -> list[Piece]:
        self._pending += text
        while self._read_message(is_last) if self._is_in_message else self._read_head(is_last):
            pass
        return self._pieces.take()

    def _read_head(self, is_last: bool) -> bool:
        found = match(_HEAD, self._pending, 0, False)
        if found is Answer.MAY_COME:
            self._pending = "" if is_last else self._pending
            return False
        head = ""
        channel = None
        if isinstance(found, Found):
            head, self._pending, channel = self._pending[: found.end], self._pending[found.end :], found.name
        self._is_in_message = True
        self._num_passed = 0 if head else 1
        self._is_call = " to=" in head
        is_reasoning = not self._is_call and channel in self._style.reasoning_channels
        self._kind = Reasoning if is_reasoning else Content
        if self._is_call:
            self._pieces.give(Content, head)
        self._separator = "\n" if self._kind in self._kinds_seen and head and not self._is_call else ""
        return True

    def _read_message(self, is_last: bool) -> bool:
        place, found = search(_END, self._pending, self._num_passed, is_last)
        self._give(self._pending[:place])
        self._num_passed = max(0, self._num_passed - place)
        if not isinstance(found, Found):
            self._pending = self._pending[place:]
            return False
        if self._is_call:
            self._pieces.give(Content, self._pending[place : found.end])
        self._pending, self._is_in_message, self._num_passed = self._pending[found.end :], False, 0
        return bool(self._pending)

    def _give(self, text: str) -> None:
        if text:
            self._pieces.give(self._kind, self._separator + text)
            self._separator = ""
            if not self._is_call:
                self._kinds_seen.add(self._kind)
