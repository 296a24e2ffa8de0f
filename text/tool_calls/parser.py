"""The one parser of tool calls: content and calls out of an answer that comes in pieces."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from typing import assert_never

from .body import Body
from .deltas import ArgumentsPiece, CallBegun, Content, Delta
from .form import BodyKind, Family, Form, Place
from .json_body import JsonBody, as_arguments, json_text
from .json_scan import JsonScanner
from .parameter_body import ParameterBody
from .pattern import MAX_SPACE, WHITE_SPACE, Answer, Found, candidates_of, match
from .tools import Tool, parameter_types

MAX_SECOND_LOOKS = 16
"""Objects of an answer that are looked through again because they are no calls; so time is linear in the text."""

MakeId = Callable[[int, str], str]
"""(index of the call in the answer, its name) -> its id."""


class _State(enum.Enum):
    CONTENT = enum.auto()
    OBJECT = enum.auto()
    """In a call's object that is held back until it is whole."""
    BODY = enum.auto()
    """In a call's arguments."""
    TAIL = enum.auto()
    """Behind a call's body."""


class ToolCallParser:
    """Give it the content part of an answer with `feed`, then call `finish`; the module's docstring has the rules."""

    def __init__(self, family: Family, tools: Sequence[Tool], make_id: MakeId, *, is_parallel: bool = True) -> None:
        """`is_parallel` False: only the first call is given out, text behind it is content as ever."""
        self._family = family
        self._tools = {tool.name: tool for tool in tools}
        self._make_id = make_id
        self._is_parallel = is_parallel
        self._forms = {
            place: [form for form in family.forms if form.place in (place, Place.ANYWHERE)] for place in Place
        }
        self._candidates = candidates_of(tuple(form.pattern for form in self._forms[Place.ANYWHERE]))
        self._state = _State.CONTENT
        self._place = Place.AT_START
        self._pending = ""
        """Text of which it is not known yet what it is."""
        self._num_passed = 0
        """Characters of it where no call begins."""
        self._body: Body = JsonBody(())
        self._scanner = JsonScanner()
        self._form: Form | None = None
        self._candidate = 0
        self._object_start = 0
        """Where the call that the object may be begins in the pending text, and where the object does."""
        self._num_second_looks = 0
        self._num_scanned = 0
        self._is_muted = False
        self._deltas: list[Delta] = []
        self.num_calls = 0
        """Calls given out so far."""

    def feed(self, text: str) -> list[Delta]:
        """What the next piece of the answer makes certain."""
        return self._run(text, False)

    def finish(self) -> list[Delta]:
        """The rest, when no more text comes."""
        return self._run("", True)

    def _run(self, text: str, is_last: bool) -> list[Delta]:
        self._pending += text
        while self._step(is_last):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def _step(self, is_last: bool) -> bool:
        """One move; False: more text is needed."""
        match self._state:
            case _State.CONTENT:
                return self._read_start(is_last) or self._read_content(is_last)
            case _State.OBJECT:
                return self._read_object(is_last)
            case _State.BODY:
                return self._read_body(is_last)
            case _State.TAIL:
                return self._read_tail(is_last)
            case _:
                assert_never(self._state)

    def _read_start(self, is_last: bool) -> bool:
        """At the beginning of the answer or behind a call, where more forms count than elsewhere."""
        if self._place is Place.ANYWHERE:
            return False
        start = len(self._pending) - len(self._pending.lstrip(WHITE_SPACE))
        if start > MAX_SPACE:
            self._place = Place.ANYWHERE
            return False
        if start == len(self._pending):
            if is_last and self._place is Place.AFTER_CALL:
                self._pending = ""
            return False
        found = self._call_at(start, is_last)
        if isinstance(found, tuple):
            self._begin(start, *found)
            return True
        if found is Answer.NO:
            self._place = Place.ANYWHERE
        return False

    def _read_content(self, is_last: bool) -> bool:
        """Content up to where a call begins or may begin."""
        if self._place is not Place.ANYWHERE and not is_last:
            return False
        self._place = Place.ANYWHERE
        while (candidate := self._candidates.search(self._pending, self._num_passed)) is not None:
            place = candidate.start()
            found = self._call_at(place, is_last)
            if isinstance(found, tuple):
                self._begin(place, *found)
                return True
            if found is Answer.MAY_COME:
                self._give_content(place)
                return False
            self._num_passed = place + 1
        self._num_passed = len(self._pending)
        self._give_content(len(self._pending), keeps_space=is_last)
        return False

    def _call_at(self, place: int, is_last: bool) -> tuple[Form, Found] | Answer:
        """The call that begins at `place` of the pending text."""
        for form in self._forms[self._place]:
            found = match(form.pattern, self._pending, place, is_last)
            if found is Answer.MAY_COME:
                return Answer.MAY_COME
            if isinstance(found, Found):
                is_call = form.body is BodyKind.OBJECT or found.name in self._tools
                return (form, found) if is_call else Answer.NO
        return Answer.NO

    def _begin(self, place: int, form: Form, found: Found) -> None:
        """A call's head stands at `place` of the pending text: gives out the content before it."""
        space = self._give_content(place)
        head_end = space + found.end - place
        if form.body is BodyKind.OBJECT:
            self._state, self._form = _State.OBJECT, form
            self._candidate, self._object_start, self._num_scanned = space, head_end, head_end
            self._scanner = JsonScanner(self._family.stops)
            return
        self._pending = self._pending[head_end:]
        name = found.name or ""
        self._give_call(name)
        self._body = self._body_of(form, name)
        self._state = _State.BODY

    def _body_of(self, form: Form, name: str) -> Body:
        if form.body is BodyKind.PARAMETERS and self._family.parameters is not None:
            return ParameterBody(self._family.parameters, parameter_types(self._tools[name]))
        return JsonBody(self._family.stops, is_in_object=form.body is BodyKind.OBJECT_REST)

    def _read_object(self, is_last: bool) -> bool:
        """A call's object as a whole; what is none is content, and looked through again behind its beginning."""
        self._num_scanned = self._scanner.scan(self._pending, self._num_scanned, is_last)
        if not self._scanner.is_done and not is_last:
            return False
        call = self._call_in(self._pending[self._object_start : self._num_scanned])
        if call is None:
            self._state, self._place = _State.CONTENT, Place.ANYWHERE
            may_look_again = self._num_second_looks < MAX_SECOND_LOOKS
            self._num_passed = self._candidate + 1 if may_look_again else self._num_scanned
            self._num_second_looks += 1
            return True
        self._pending = self._pending[self._num_scanned :]
        self._give_call(call[0])
        self._give_arguments(call[1])
        self._state = _State.TAIL
        return True

    def _call_in(self, text: str) -> tuple[str, str] | None:
        """Name and arguments of a call's object."""
        try:
            call = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if isinstance(call.get("function"), dict):
            call = call["function"]
        name = call.get("name")
        if not isinstance(name, str) or name not in self._tools:
            return None
        key = next((key for key in ("arguments", "parameters") if key in call), None)
        if key is None:
            is_marked = self._form is not None and self._form.place is Place.ANYWHERE
            return (name, "{}") if is_marked else None
        return name, as_arguments(json_text(call[key]))

    def _read_body(self, is_last: bool) -> bool:
        reading = self._body.read(self._pending, is_last)
        self._pending = self._pending[reading.num_read :]
        self._give_arguments(reading.arguments)
        if reading.is_done:
            self._state = _State.TAIL
        elif is_last:
            self._pending = ""
        return reading.is_done

    def _read_tail(self, is_last: bool) -> bool:
        found = match(self._family.tail, self._pending, 0, False)
        if found is Answer.MAY_COME:
            # A marker that is cut off is no content.
            self._pending = "" if is_last else self._pending
            return False
        self._pending = self._pending[found.end if isinstance(found, Found) else 0 :]
        self._state, self._place, self._num_passed = _State.CONTENT, Place.AFTER_CALL, 0
        return True

    def _give_content(self, end: int, *, keeps_space: bool = False) -> int:
        """Gives out the pending text up to `end` but for the white space before it, whose length is returned."""
        text = self._pending[:end]
        space = 0 if keeps_space else min(len(text) - len(text.rstrip(WHITE_SPACE)), MAX_SPACE)
        text = text[: end - space]
        self._pending = self._pending[len(text) :]
        self._num_passed = max(0, self._num_passed - len(text))
        if text:
            last = self._deltas[-1] if self._deltas else None
            if isinstance(last, Content):
                self._deltas[-1] = Content(last.text + text)
            else:
                self._deltas.append(Content(text))
        return space

    def _give_call(self, name: str) -> None:
        self._is_muted = self.num_calls > 0 and not self._is_parallel
        if not self._is_muted:
            self._deltas.append(CallBegun(self.num_calls, self._make_id(self.num_calls, name), name))
            self.num_calls += 1

    def _give_arguments(self, text: str) -> None:
        if text and not self._is_muted:
            last = self._deltas[-1] if self._deltas else None
            if isinstance(last, ArgumentsPiece):
                self._deltas[-1] = ArgumentsPiece(last.index, last.text + text)
            else:
                self._deltas.append(ArgumentsPiece(self.num_calls - 1, text))
