"""Patterns over text that comes in pieces: one is there, is not there, or may still come.

A pattern is a tuple of elements that are matched one after the other and never tried again (a parsing expression
grammar), so that the answer for a text is one function of it, however it is cut: more text turns `Answer.MAY_COME`
into one of the others and changes neither of these.
"""

from __future__ import annotations

import enum
import functools
import re

import msgspec

MAX_SPACE = 64
"""Characters of white space that a pattern passes over, or that are held back because a marker may follow."""


class Run(msgspec.Struct, frozen=True):
    """`min` to `max` characters of a class, as many as there are; `is_name`: they are a tool's name."""

    characters: str
    """A character class of `re`, with its brackets."""
    max: int
    min: int = 0
    is_name: bool = False


class Maybe(msgspec.Struct, frozen=True):
    """These elements if all of them are there, else nothing."""

    elements: tuple[Element, ...]


class Either(msgspec.Struct, frozen=True):
    """The first alternative that is there."""

    alternatives: tuple[tuple[Element, ...], ...]


class Ahead(msgspec.Struct, frozen=True):
    """These elements must follow and are left where they are."""

    elements: tuple[Element, ...]


class End(msgspec.Struct, frozen=True):
    """The end of all text."""


Element = str | Run | Maybe | Either | Ahead | End
Pattern = tuple[Element, ...]

WHITE_SPACE = " \t\r\n"
SPACE = Run(rf"[{WHITE_SPACE}]", MAX_SPACE)


class Answer(enum.Enum):
    """What a pattern says of a place in a text where it does not match."""

    NO = enum.auto()
    MAY_COME = enum.auto()


class Found(msgspec.Struct, frozen=True):
    """A match: where it ends, and the tool's name if the pattern has one."""

    end: int
    name: str | None = None


def match(pattern: Pattern, text: str, start: int, is_last: bool) -> Found | Answer:
    """The pattern at `start` of `text`; `is_last`: no more text comes."""
    end, name = start, None
    for element in pattern:
        found = _element(element, text, end, is_last)
        if isinstance(found, Answer):
            return found
        end, name = found.end, found.name or name
    return Found(end, name)


def search(pattern: Pattern, text: str, start: int, is_last: bool) -> tuple[int, Found | Answer]:
    """The first place from `start` on where the pattern is or may still come, and which; (len(text), NO): nowhere."""
    candidates = candidates_of((pattern,))
    while (candidate := candidates.search(text, start)) is not None:
        found = match(pattern, text, candidate.start(), is_last)
        if found is not Answer.NO:
            return candidate.start(), found
        start = candidate.start() + 1
    return len(text), Answer.NO


def _element(element: Element, text: str, start: int, is_last: bool) -> Found | Answer:
    match element:
        case str():
            return _literal(element, text, start, is_last)
        case Run():
            return _run(element, text, start, is_last)
        case Maybe():
            found = match(element.elements, text, start, is_last)
            return Found(start) if found is Answer.NO else found
        case Either():
            for alternative in element.alternatives:
                found = match(alternative, text, start, is_last)
                if found is not Answer.NO:
                    return found
            return Answer.NO
        case Ahead():
            found = match(element.elements, text, start, is_last)
            return found if isinstance(found, Answer) else Found(start)
        case End():
            if start < len(text):
                return Answer.NO
            return Found(start) if is_last else Answer.MAY_COME


def _literal(literal: str, text: str, start: int, is_last: bool) -> Found | Answer:
    if text.startswith(literal, start):
        return Found(start + len(literal))
    may_come = not is_last and literal.startswith(text[start : start + len(literal)])
    return Answer.MAY_COME if may_come else Answer.NO


def _run(run: Run, text: str, start: int, is_last: bool) -> Found | Answer:
    found = _run_regex(run).match(text, start)
    end = start if found is None else found.end()
    if end == len(text) and end - start < run.max and not is_last:
        return Answer.MAY_COME
    if end - start < run.min:
        return Answer.NO
    return Found(end, text[start:end] if run.is_name else None)


@functools.lru_cache(maxsize=256)
def _run_regex(run: Run) -> re.Pattern[str]:
    return re.compile(f"{run.characters}{{0,{run.max}}}")


@functools.lru_cache(maxsize=256)
def candidates_of(patterns: tuple[Pattern, ...]) -> re.Pattern[str]:
    """Matches every character with which one of the patterns may begin; without patterns, none."""
    return re.compile("|".join(dict.fromkeys(one for pattern in patterns for one in _beginnings(pattern))) or r"(?!)")


def _beginnings(pattern: Pattern) -> list[str]:
    """Regular expressions of the characters with which the pattern may begin."""
    found: list[str] = []
    for element in pattern:
        match element:
            case str():
                return [*found, re.escape(element[0])]
            case Run():
                found.append(element.characters)
                if element.min:
                    return found
            case Maybe():
                found += _beginnings(element.elements)
            case Either():
                return found + [one for alternative in element.alternatives for one in _beginnings(alternative)]
            case Ahead() | End():
                pass
    return found
