"""Structures as a grammar in Lark's notation.

llguidance's lexer takes the longest lexeme: it never goes back to end one earlier. So what is regular (texts,
expressions, free text) and stands together is one lexeme, in which every way to read it counts. Beside what is not
(JSON, grammars) a structure is refused where the lexer would take a text for one piece that could be another's
beginning: a lexeme that may go on with what the next piece begins with, alternatives of which one begins as another
does. A grammar takes as much of the text as it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple, assert_never

import llguidance
import msgspec

from ..errors import GrammarRefused
from ..mailbox.messages.structures import (
    AnyText,
    ConstText,
    Element,
    GrammarText,
    InOrder,
    OneOf,
    PatternText,
    Repeated,
    SchemaText,
    SeparatedTags,
    Tagged,
    TriggeredTags,
)
from .client_grammars import lark_of_client
from .json_text import JsonValue, json_rule
from .lark_text import ANYTHING, HEADER, Markup, either, literal, without
from .regex_dialect import rust_regex
from .schema_check import checked_schema
from .vocabulary import Vocabulary

_NUMBER_GOES_ON = "0123456789.eE+-"
_FIRST_OF_JSON = {
    "object": "{",
    "array": "[",
    "string": '"',
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tf",
    "null": "n",
}
_ANY_CHARACTER = "/(?s:.)/"
_MAX_ELEMENTS = 4096


class _Piece(NamedTuple):
    """A lexeme, or a rule's body of several."""

    text: str
    is_lexeme: bool
    heads: tuple[str, ...] | None = None
    """Of a rule: texts one of which begins it, as a lexeme or as its first character; None: anything may."""
    goes_on: str | None = ""
    """Of a rule: characters that its last lexeme could go on with; None: any."""
    may_be_empty: bool = False


_Pieces = list[_Piece]


def structure_grammar(root: Element, vocabulary: Vocabulary) -> str:
    """A grammar with the rule `start`. Raises GrammarRefused."""
    return _StructureGrammar(Markup(vocabulary)).text(root)


class _StructureGrammar:
    def __init__(self, markup: Markup) -> None:
        self._markup = markup
        self._rules: list[str] = []
        self._num_elements = 0

    def text(self, root: Element) -> str:
        pieces = self._merged(self._pieces(root, ()))
        if not pieces:
            raise GrammarRefused("the structure is the empty text alone")
        return "\n".join([f"start: {self._sequence(pieces)}", *self._rules])

    def _pieces(self, element: Element, stops: tuple[str, ...]) -> _Pieces:
        """`stops`: what ends the tag at whose end the element stands."""
        self._num_elements += 1
        if self._num_elements > _MAX_ELEMENTS:
            raise GrammarRefused(f"the structure has more than {_MAX_ELEMENTS:,} elements")
        match element:
            case ConstText(text):
                return self._const(text)
            case SchemaText(schema):
                return [_json(checked_schema(schema))]
            case PatternText(pattern):
                return [_Piece(f"/{rust_regex(pattern)}/", True)]
            case GrammarText(grammar):
                return [_Piece(f"%lark {{\n{lark_of_client(grammar).removeprefix(HEADER)}\n}}", False)]
            case AnyText(excludes):
                return [_Piece(f"({without(excludes + stops)})", True)]
            case InOrder(elements):
                *before, last = elements
                return [piece for part in before for piece in self._pieces(part, ())] + self._pieces(last, stops)
            case OneOf(elements):
                return self._one_of([self._pieces(part, stops) for part in elements])
            case Repeated(part, least, most):
                return self._repeated(self._pieces(part, ()), least, most)
            case Tagged():
                return self._tagged(element.begin, element)
            case TriggeredTags():
                return self._triggered(element, stops)
            case SeparatedTags():
                return self._separated(element)
            case _:
                assert_never(element)

    def _const(self, text: str) -> _Pieces:
        return [
            _Piece(f"<[{part}]>", False, heads=()) if isinstance(part, int) else _Piece(literal(part), True)
            for part in self._markup.pieces(text)
        ]

    def _tagged(self, begin: str, tag: Tagged) -> _Pieces:
        """`begin`: what is left of the tag's own."""
        ends = [self._const(end) for end in tag.ends]
        content = self._pieces(tag.content, tuple(end for end in tag.ends if end))
        return [*self._const(begin), *content, *self._one_of(ends)]

    def _one_of(self, options: Sequence[_Pieces]) -> _Pieces:
        merged = [self._merged(pieces) for pieces in options]
        if len(merged) == 1:
            return merged[0]
        filled = [pieces for pieces in merged if pieces]
        has_empty = len(filled) < len(merged)
        if not filled:
            return []
        if all(len(pieces) == 1 and pieces[0].is_lexeme for pieces in filled):
            return [_Piece(either(pieces[0].text for pieces in filled) + "?" * has_empty, True)]
        for one, other in combinations(filled, 2):
            self._ensure_differ(one, other)
        heads = [self._beginning(pieces) for pieces in filled]
        return [
            _Piece(
                either(self._sequence(pieces) for pieces in filled) + "?" * has_empty,
                False,
                None if None in heads else tuple(head for each in heads for head in each or ()),
                _together(_end(pieces) for pieces in filled),
                has_empty or any(all(map(_may_be_empty, pieces)) for pieces in filled),
            )
        ]

    def _repeated(self, pieces: _Pieces, least: int, most: int | None) -> _Pieces:
        merged = self._merged(pieces)
        if not merged or most == 0:
            return []
        count = f"{{{least},{'' if most is None else most}}}"
        if len(merged) == 1 and merged[0].is_lexeme:
            return [_Piece(f"({merged[0].text}){count}", True)]
        self._ensure_parted([*merged, merged[0]])
        is_empty = least == 0 or all(map(_may_be_empty, merged))
        return [_Piece(f"({self._sequence(merged)}){count}", False, self._beginning(merged), _end(merged), is_empty)]

    def _separated(self, form: SeparatedTags) -> _Pieces:
        tag = self._one_of([self._tagged(each.begin, each) for each in form.tags])
        more: _Pieces = []
        if not form.stop_after_first:
            more = self._repeated([*self._const(form.separator), *tag], 0, None)
        return [*tag, *more] if form.at_least_one else self._repeated([*tag, *more], 0, 1)

    def _triggered(self, form: TriggeredTags, stops: tuple[str, ...]) -> _Pieces:
        after: dict[str, list[_Pieces]] = {trigger: [] for trigger in form.triggers}
        for tag in form.tags:
            found = [trigger for trigger in form.triggers if tag.begin.startswith(trigger)]
            if len(found) != 1:
                raise GrammarRefused(f"the tag {tag.begin[:100]!r} has to begin with exactly one of the triggers")
            after[found[0]].append(self._tagged(tag.begin[len(found[0]) :], tag))
        if form.at_least_one and form.stop_after_first:
            return self._first_tag(form)
        text = _Piece(f"({without((*form.triggers, *form.excludes, *stops))})", True)
        free = self._named(text)
        options = []
        for number, (trigger, bodies) in enumerate(after.items()):
            if bodies:
                body = self._sequence(self._merged(self._one_of(bodies)))
                options.append(f"{self._head(free, f'{free.lower()}_head_{number}', trigger)} {body}")
        if form.stop_after_first:
            return [_Piece(either([free, *options]), False, None, None, True)]
        goes_on = _together(_end(self._merged(pieces)) for bodies in after.values() for pieces in bodies if pieces)
        tags = _Piece(f"{either(options)}*", False, None, goes_on, True)
        return [*(self._first_tag(form) if form.at_least_one else []), tags, text]

    def _first_tag(self, form: TriggeredTags) -> _Pieces:
        return self._one_of([self._tagged(tag.begin, tag) for tag in form.tags])

    def _named(self, lexeme: _Piece) -> str:
        name = f"LEXEME_{len(self._rules)}"
        self._rules.append(f"{name}: {lexeme.text}")
        return name

    def _head(self, free: str, name: str, trigger: str) -> str:
        first, *others = self._markup.pieces(trigger)
        rest = " ".join(f"<[{part}]>" if isinstance(part, int) else literal(part) for part in others)
        if isinstance(first, int):
            return f"{free} <[{first}]> {rest}"
        self._rules.append(f"{name}[lazy]: {free} {literal(first)}")
        return f"{name} {rest}"

    def _merged(self, pieces: Iterable[_Piece]) -> _Pieces:
        """With neighbouring lexemes as one. Raises GrammarRefused where two pieces cannot be told apart."""
        merged: _Pieces = []
        for piece in pieces:
            if piece.is_lexeme and merged and merged[-1].is_lexeme:
                merged[-1] = _Piece(f"{merged[-1].text} {piece.text}", True)
            else:
                merged.append(piece)
        self._ensure_parted(merged)
        return merged

    def _sequence(self, pieces: _Pieces) -> str:
        return " ".join(self._named(piece) if piece.is_lexeme else piece.text for piece in pieces)

    def _ensure_parted(self, pieces: _Pieces) -> None:
        for index, piece in enumerate(pieces):
            for following in pieces[index + 1 :]:
                if self._runs_into(piece, following):
                    raise GrammarRefused(
                        "an element of the structure may go on with what the next one begins with, so its end cannot "
                        "be told: put a text between them"
                    )
                if not _may_be_empty(following):
                    break

    def _runs_into(self, piece: _Piece, following: _Piece) -> bool:
        heads = None if following.is_lexeme else following.heads
        if heads == ():
            return False
        if piece.is_lexeme:
            character = _ANY_CHARACTER if heads is None else _class("".join(head[0] for head in heads))
            return _has_text(f"({piece.text}) & (({piece.text}) {character} {ANYTHING})")
        if piece.goes_on == "":
            return False
        if following.is_lexeme:
            character = _ANY_CHARACTER if piece.goes_on is None else _class(piece.goes_on)
            return _has_text(f"({following.text}) & ({character} {ANYTHING})")
        return heads is None or piece.goes_on is None or any(head[0] in piece.goes_on for head in heads)

    def _beginning(self, pieces: _Pieces) -> tuple[str, ...] | None:
        """The heads of a sequence; None: anything may begin it."""
        first = pieces[0]
        if _may_be_empty(first):
            return None
        return self._heads(first) if first.is_lexeme else first.heads

    def _heads(self, lexeme: _Piece) -> tuple[str, ...] | None:
        """Of a lexeme: only one that is a text is known."""
        try:
            text = msgspec.json.decode(lexeme.text, type=str)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None
        return (text,)

    def _ensure_differ(self, one: _Pieces, other: _Pieces) -> None:
        may_vanish = any(len(pieces) > 1 and _may_be_empty(pieces[0]) for pieces in (one, other))
        if may_vanish or self._may_begin_alike(one[0], other[0]):
            raise GrammarRefused(
                "an element of the structure may begin as another one does in whose place it may stand, so which it is "
                "cannot be told"
            )

    def _may_begin_alike(self, one: _Piece, other: _Piece) -> bool:
        if one.is_lexeme and other.is_lexeme:
            texts = self._heads(one), self._heads(other)
            if texts[0] is not None and texts[1] is not None:
                return _is_proper_prefix(texts[0][0], texts[1][0])
            return _has_text(
                f"(({one.text}) & (({other.text}) {_ANY_CHARACTER} {ANYTHING}))"
                f" | (({other.text}) & (({one.text}) {_ANY_CHARACTER} {ANYTHING}))"
            )
        if one.is_lexeme:
            one, other = other, one
        if one.heads is None:
            return True
        if other.is_lexeme:
            parts = [literal(head[:size]) for head in one.heads for size in range(1, len(head))]
            begun = either([f"({literal(head)} {ANYTHING})" for head in one.heads] + parts)
            return bool(one.heads) and _has_text(f"({other.text}) & {begun}")
        if other.heads is None:
            return True
        pairs = [(a, b) for a in one.heads for b in other.heads]
        return any(a[0] == b[0] if 1 in (len(a), len(b)) else _is_proper_prefix(a, b) for a, b in pairs)


def _json(schema: JsonValue) -> _Piece:
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else list(_FIRST_OF_JSON)
    first = "".join(_FIRST_OF_JSON[str(each)] for each in kinds)
    may_be_number = "number" in kinds or "integer" in kinds
    return _Piece(json_rule(schema), False, tuple(dict.fromkeys(first)), _NUMBER_GOES_ON if may_be_number else "")


def _end(pieces: _Pieces) -> str | None:
    """What the end of a sequence could go on with; None: anything."""
    ends: list[str | None] = []
    for piece in reversed(pieces):
        if piece.is_lexeme:
            is_open = _has_text(f"({piece.text}) & (({piece.text}) {_ANY_CHARACTER} {ANYTHING})")
            ends.append(None if is_open else "")
        else:
            ends.append(piece.goes_on)
        if not _may_be_empty(piece):
            break
    return _together(ends)


def _may_be_empty(piece: _Piece) -> bool:
    return _matcher(piece.text).is_accepting() if piece.is_lexeme else piece.may_be_empty


def _together(goes_on: Iterable[str | None]) -> str | None:
    known = list(goes_on)
    return None if None in known else "".join(each or "" for each in known)


def _is_proper_prefix(one: str, other: str) -> bool:
    return one != other and (one.startswith(other) or other.startswith(one))


def _class(characters: str) -> str:
    return either(literal(character) for character in dict.fromkeys(characters))


def _has_text(lexeme: str) -> bool:
    """Whether the body of a terminal matches anything."""
    matcher = _matcher(lexeme)
    if matcher.is_accepting():
        return True
    matcher.compute_bitmask()
    return not matcher.is_error()


def _matcher(lexeme: str) -> llguidance.LLMatcher:
    """Of a terminal with this body, over bytes. Raises GrammarRefused if it is none."""
    source = llguidance.LLMatcher.grammar_from_lark(f"{HEADER}start: LEXEME\nLEXEME: {lexeme}")
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0)
    if matcher.is_error():
        raise GrammarRefused(f"the structure cannot be compiled: {matcher.get_error().splitlines()[0][:300]}")
    return matcher
