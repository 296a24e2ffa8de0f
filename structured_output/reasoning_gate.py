"""A grammar that holds behind the reasoning: before its end everything is free but the end of the answer.

| the answer so far                 | what comes next                                      |
|-----------------------------------|------------------------------------------------------|
| reasoning                         | any text; with the end marker the grammar begins     |
| nothing, or a part of `begin`     | what goes on with `begin`, or what the grammar takes |
| `begin`, whole                    | reasoning                                            |
| anything else                     | what the grammar takes                               |
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import ReasoningGate
from .backend import CompiledGrammar, Int32s, Matcher
from .marker import BeginMarker, EndMarker
from .token_index import TokenIndex
from .vocabulary import Vocabulary

_MAX_GATES = 64
"""That are kept ready; a model has one or two."""


class _Gate(msgspec.Struct, frozen=True):
    """The markers, ready for one vocabulary."""

    begin: BeginMarker | None
    """None: the reasoning has begun."""
    end: EndMarker


class Gates:
    """Makes and keeps the gates of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._index: TokenIndex | None = None
        self._gates: dict[ReasoningGate, _Gate] = {}

    def gated(self, grammar: CompiledGrammar, asked: ReasoningGate | None) -> CompiledGrammar:
        """`grammar` behind the gate, if there is one. Raises GrammarRefused for a reasoning without an end."""
        if asked is None or (not asked.is_open and not asked.begin):
            return grammar
        if not asked.end:
            raise GrammarRefused("the reasoning has no end marker, so a grammar behind it would never begin")
        if asked not in self._gates:
            if len(self._gates) >= _MAX_GATES:
                self._gates.clear()
            self._gates[asked] = self._ready(asked)
        return _GatedGrammar(grammar, self._gates[asked])

    def _ready(self, asked: ReasoningGate) -> _Gate:
        index = self._index = self._index or TokenIndex(self._vocabulary)
        end = EndMarker(asked.end, index)
        return _Gate(None if asked.is_open else BeginMarker(asked.begin, end, index), end)


class _GatedGrammar:
    def __init__(self, grammar: CompiledGrammar, gate: _Gate) -> None:
        self._grammar = grammar
        self._gate = gate

    def matcher(self) -> GatedMatcher:
        return GatedMatcher(self._grammar.matcher(), self._gate)


class _State(msgspec.Struct, frozen=True):
    """Of the gate behind a token. Where neither `begin` nor `end` is there, the grammar holds."""

    begin: int | None
    """State of the begin marker, while it may become whole."""
    end: int | None
    """State of the end marker, in the reasoning."""
    may_be_grammar: bool
    """Whether the answer could be the grammar's: then its matcher has taken all tokens."""


_IN_GRAMMAR = _State(None, None, True)


class GatedMatcher:
    """See `Matcher`."""

    def __init__(self, grammar: Matcher, gate: _Gate) -> None:
        self._grammar = grammar
        self._gate = gate
        self._states = [_State(None, 0, False) if gate.begin is None else _State(0, None, True)]
        """Behind each token, up to the one with which it is settled that the grammar holds."""
        self._first: list[int] = []
        """The tokens while `begin` was not whole."""
        self._num_before = 0
        """Tokens before the first that is the grammar's, once it holds."""

    @property
    def num_accepted(self) -> int:
        if self._is_settled:
            return self._num_before + self._grammar.num_accepted
        return len(self._states) - 1

    @property
    def may_end(self) -> bool:
        return self._states[-1].may_be_grammar and self._grammar.may_end

    @property
    def is_complete(self) -> bool:
        return self._is_settled and self._grammar.is_complete

    @property
    def _is_settled(self) -> bool:
        return self._states[-1] is _IN_GRAMMAR

    def accept(self, token_ids: Sequence[int]) -> int:
        for index, token_id in enumerate(token_ids):
            if self._is_settled:
                return index + self._grammar.accept(token_ids[index:])
            state = self._after(self._states[-1], token_id)
            if state is None:
                return index
            self._states.append(state)
        return len(token_ids)

    def _after(self, state: _State, token_id: int) -> _State | None:
        if state.end is not None:
            return self._reasoning(self._gate.end.after(state.end, token_id))
        assert state.begin is not None and self._gate.begin is not None
        begin, end = self._gate.begin.after(state.begin, token_id)
        may_be_grammar = state.may_be_grammar and self._grammar.accept((token_id,)) == 1
        if begin is None and end is None and not may_be_grammar:
            return None
        self._first.append(token_id)
        if end is not None:
            return self._reasoning(end)
        return _IN_GRAMMAR if begin is None else _State(begin, None, may_be_grammar)

    def _reasoning(self, end: int | None) -> _State | None:
        """The state in a reasoning, or behind it."""
        if end is None:
            return None
        if end < self._gate.end.whole:
            return _State(None, end, False)
        self._grammar.rollback(0)
        self._num_before = len(self._states)
        return _IN_GRAMMAR

    def rollback(self, version: int) -> None:
        assert 0 <= version <= self.num_accepted, "a rollback goes back"
        if version >= len(self._states) - 1:
            if self._is_settled:
                self._grammar.rollback(version - self._num_before)
            return
        del self._states[version + 1 :]
        del self._first[version:]
        self._num_before = 0
        if self._states[-1].may_be_grammar:
            self._grammar.rollback(0)
            self._grammar.accept(self._first)

    def fill(self, mask: Int32s) -> None:
        state = self._states[-1]
        if state.end is not None:
            mask[:] = self._gate.end.mask(state.end)
            return
        if state.may_be_grammar:
            self._grammar.fill(mask)
        else:
            mask[:] = 0
        if state.begin is not None and self._gate.begin is not None:
            mask |= self._gate.begin.mask(state.begin)

    def num_valid(self, token_ids: Sequence[int]) -> int:
        if self._is_settled:
            return self._grammar.num_valid(token_ids)
        version = self.num_accepted
        num_valid = self.accept(token_ids)
        self.rollback(version)
        return num_valid
