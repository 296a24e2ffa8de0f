"""What stands in the text of one choice: reasoning, content and tool calls, told apart while it comes.

The answer that is not streamed is fed at once, so it is the stream's pieces joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ..mailbox.messages.requests import ReasoningState
from ..text.reasoning import STYLES, Reasoning, ReasoningParser, reasoning_parser
from ..text.tool_calls import FAMILIES, ArgumentsPiece, CallBegun, Content, Tool, ToolCallParser, call_ids


class Parsing(msgspec.Struct, frozen=True):
    """How the answers to a request are read."""

    family: str = ""
    """Of tool calls; empty: there are none."""
    tools: tuple[Tool, ...] = ()
    is_parallel: bool = True
    are_held: bool = False
    """A grammar sees to the calls. It begins where the reasoning's end marker stands: what looks like a call before is
    none."""
    are_all: bool = False
    """And it lets nothing else come behind the reasoning: other text is a mark that was cut off."""
    marks: tuple[str, ...] = ()
    """If there are any: an answer that begins with one of them is calls and nothing else, any other one has none."""
    num_calls_before: int = 0
    """Calls in the messages before."""
    is_legacy: bool = False
    """A call is written as `function_call`."""
    reasoning: str = ""
    """Its style; empty: it is not looked for."""
    shows_reasoning: bool = True


class CallPiece(msgspec.Struct, frozen=True):
    """What came of one call; `id` and `name` with its beginning."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


class Parsed(msgspec.Struct, frozen=True):
    """What a piece of text held."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()
    """Each call once, in order."""

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class AnswerParser:
    """Of one choice. `key` tells it from all other choices: the ids of its calls are made from it."""

    def __init__(self, parsing: Parsing, state: ReasoningState, key: str) -> None:
        self.is_legacy = parsing.is_legacy
        self._shows_reasoning = parsing.shows_reasoning
        self._shows_content = not parsing.are_all
        self._marks = parsing.marks
        """None: it is known what the answer is, or the same text may hold both."""
        self._begun = ""
        """What may become a mark."""
        self._calls: ToolCallParser | None = None
        self._reasoning: ReasoningParser | None = None
        triggers: Sequence[str] = ()
        if parsing.family:
            family = FAMILIES[parsing.family]
            make_id = call_ids(family, key, num_before=parsing.num_calls_before)
            self._calls = ToolCallParser(family, parsing.tools, make_id, is_parallel=parsing.is_parallel)
            if not family.written.is_trigger_at_start and not parsing.are_held:
                triggers = (family.written.trigger,)
        if parsing.reasoning:
            self._reasoning = reasoning_parser(STYLES[parsing.reasoning], state, ends_before=triggers)

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return 0 if self._calls is None else self._calls.num_calls

    def feed(self, text: str, *, is_last: bool) -> Parsed:
        """What the next piece of the text makes certain; `is_last`: no more comes."""
        reasoning: list[str] = []
        content: list[str] = []
        calls: dict[int, CallPiece] = {}
        for piece in self._pieces(text, is_last):
            match piece:
                case Reasoning(text=part):
                    reasoning.append(part)
                case Content(text=part):
                    if self._shows_content:
                        content.append(part)
                case CallBegun(index=index, id=call_id, name=name):
                    calls[index] = CallPiece(index, "", call_id, name)
                case ArgumentsPiece(index=index, text=part):
                    before = calls.get(index, CallPiece(index, ""))
                    calls[index] = msgspec.structs.replace(before, arguments=before.arguments + part)
        return Parsed("".join(content), "".join(reasoning) if self._shows_reasoning else "", tuple(calls.values()))

    def _pieces(self, text: str, is_last: bool) -> Iterator[Reasoning | Content | CallBegun | ArgumentsPiece]:
        if self._reasoning is None:
            yield from self._read_calls(text)
        else:
            for piece in self._reasoning.feed(text):
                yield from (piece,) if isinstance(piece, Reasoning) else self._read_calls(piece.text)
            if is_last:
                for piece in self._reasoning.finish():
                    yield from (piece,) if isinstance(piece, Reasoning) else self._read_calls(piece.text)
        if is_last and self._marks:
            yield from (Content(self._begun),) if self._begun else ()
        elif is_last and self._calls is not None:
            yield from self._calls.finish()

    def _read_calls(self, text: str) -> Sequence[Content | CallBegun | ArgumentsPiece]:
        if self._marks:
            text = self._begun = self._begun + text
            if text.startswith(self._marks):
                self._shows_content = False
            elif any(mark.startswith(text) for mark in self._marks):
                return ()
            else:
                self._calls = None
            self._marks = ()
        if self._calls is None:
            return (Content(text),) if text else ()
        return self._calls.feed(text)
