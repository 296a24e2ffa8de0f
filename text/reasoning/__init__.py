"""Reasoning and content in the text of an answer, told apart while it comes.

    style = STYLES[name]                                    # name = detect_reasoning(template), not None
    state = reasoning_state(style, prompt_text)             # "closed", "open" or "may_open"
    parser = reasoning_parser(style, state)
    for piece in answer:
        pieces = parser.feed(piece)                         # list of Reasoning | Content, often empty
    pieces = parser.finish()

One parser per choice. For every cut of an answer the joined reasoning and the joined content are the same.

- "closed": everything is content, whatever markers stand in it. This is what a prompt with thinking off leads to, and
  what a completion without a chat template is to be given (or no parser).
- "open": everything is reasoning up to the end marker, which may never come; an opening marker once more is dropped.
- "may_open": reasoning only if the answer begins with the marker that opens it, white space aside.

White space between text and markers is dropped. `style.markers` are tokens of their own: decode the answer with these
kept. Tool calls are in the content: give the pieces of content to a `ToolCallParser`. With `harmony`, calls are in it
with their heads, for that parser; without tools they come out as text, for a call that nobody asked for is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..tool_calls.deltas import Content
from .channel_parser import ChannelParser
from .deltas import Piece, Reasoning
from .styles import STYLES, Channels, State, Style, Tags, detect_reasoning, reasoning_state
from .tag_parser import TagParser


class ReasoningParser(Protocol):
    """Text in, pieces out."""

    def feed(self, text: str) -> list[Piece]:
        """What the next piece of the answer makes certain."""
        ...

    def finish(self) -> list[Piece]:
        """The rest, when no more text comes."""
        ...


def reasoning_parser(style: Style, state: State, *, ends_before: Sequence[str] = ()) -> ReasoningParser:
    """A parser for one answer.

    `ends_before`: markers that end the reasoning of `Tags` too and stay in the content. Models forget their end marker
    before a tool call: give `family.markers[:1]` where tools are offered.
    """
    match style:
        case Tags():
            return TagParser(style, state, ends_before)
        case Channels():
            return ChannelParser(style, state)


__all__ = [
    "STYLES",
    "Channels",
    "Content",
    "Piece",
    "Reasoning",
    "ReasoningParser",
    "State",
    "Style",
    "Tags",
    "detect_reasoning",
    "reasoning_parser",
    "reasoning_state",
]
