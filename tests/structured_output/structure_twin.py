"""Which texts a structure has, found by trying every way to read them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

from callboard.mailbox.messages.structures import (
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

SCHEMAS = {
    '{"type":"integer","minimum":-9,"maximum":99}': r"-?[0-9]|[1-9][0-9]",
    '{"type":"boolean"}': "true|false",
    '{"type":"array","items":{"type":"null"},"maxItems":1}': r"\[(null)?\]",
    '{"type":"object","additionalProperties":false}': r"\{\}",
}
"""Schema -> its values without white space, as an expression."""
GRAMMARS = {'start: "(" start ")" | "x"': "|".join(r"\(" * depth + "x" + r"\)" * depth for depth in range(60))}
BITS = ("<a>", "</a>", "<ab>", "<", "a", "b", "1", "-1", "{}", "[null]", "true", "x", "(x)", ",", "12", ">")


def is_text_of(root: Element, text: str) -> bool:
    return len(text) in _ends(root, text, 0, ())


def _ends(element: Element, text: str, start: int, stops: tuple[str, ...]) -> set[int]:
    """Where the element can end that begins at `start`."""
    match element:
        case ConstText(const):
            return {start + len(const)} if text.startswith(const, start) else set()
        case SchemaText(schema):
            return _matches(SCHEMAS[schema], text, start)
        case PatternText(pattern):
            return _matches(pattern, text, start)
        case GrammarText(grammar):
            return _matches(GRAMMARS[grammar], text, start)
        case AnyText(excludes):
            return set(_free(text, start, (*excludes, *stops)))
        case InOrder(elements):
            places = {start}
            for index, part in enumerate(elements):
                last = stops if index == len(elements) - 1 else ()
                places = {end for place in places for end in _ends(part, text, place, last)}
            return places
        case OneOf(elements):
            return {end for part in elements for end in _ends(part, text, start, stops)}
        case Repeated(part, least, most):
            found, places = set(), {start}
            for count in itertools.count():
                if count >= least:
                    found |= places
                if not places or count == most or count > len(text) + least:
                    return found
                places = {end for place in places for end in _ends(part, text, place, ())}
        case Tagged(begin, content, ends):
            inner = InOrder((ConstText(begin), content))
            bodies = _ends(inner, text, start, tuple(filter(None, ends)))
            return {end + len(mark) for end in bodies for mark in ends if text.startswith(mark, end)}
        case SeparatedTags(tags, separator, at_least_one, stop_after_first):
            one: Element = OneOf(tags)
            more = Repeated(InOrder((ConstText(separator), one)), 0, 0 if stop_after_first else None)
            found = _ends(InOrder((one, more)), text, start, ())
            return found if at_least_one else found | {start}
        case TriggeredTags():
            return _triggered(element, text, start, stops)
    raise AssertionError(element)


def _triggered(form: TriggeredTags, text: str, start: int, stops: tuple[str, ...]) -> set[int]:
    banned = (*form.triggers, *form.excludes, *stops)
    places = {end for tag in form.tags for end in _ends(tag, text, start, ())} if form.at_least_one else {start}
    if form.stop_after_first:
        if form.at_least_one:
            return places
        free = set(_free(text, start, banned))
        return free | {end for place in free for tag in form.tags for end in _ends(tag, text, place, ())}
    seen: set[int] = set()
    found: set[int] = set()
    while places - seen:
        place = (places - seen).pop()
        seen.add(place)
        free = set(_free(text, place, banned))
        found |= free
        places |= {end for begin in free for tag in form.tags for end in _ends(tag, text, begin, ())}
    return found


def _free(text: str, start: int, banned: Iterable[str]) -> Iterator[int]:
    for end in range(start, len(text) + 1):
        if any(each in text[start:end] for each in banned):
            return
        yield end


def _matches(pattern: str, text: str, start: int) -> set[int]:
    return {end for end in range(start, len(text) + 1) if re.fullmatch(pattern, text[start:end])}


def structures() -> st.SearchStrategy[Element]:
    leaves = st.one_of(
        st.builds(ConstText, st.sampled_from(("", "a", "ab", "<a>", "1", "x"))),
        st.builds(SchemaText, st.sampled_from(sorted(SCHEMAS))),
        st.builds(PatternText, st.sampled_from(("[ab]+", "1|12", "a*", "[0-9]{2}", "x"))),
        st.builds(GrammarText, st.sampled_from(sorted(GRAMMARS))),
        st.builds(AnyText, st.sampled_from(((), ("1",), ("b", "x")))),
    )
    return st.recursive(leaves, _composed, max_leaves=5)


def _composed(parts: st.SearchStrategy[Element]) -> st.SearchStrategy[Element]:
    some = st.lists(parts, min_size=1, max_size=3).map(tuple)
    ends = st.sampled_from((("</a>",), ("</a>", ">"), (",",), ("",)))
    tags = st.lists(
        st.builds(Tagged, st.sampled_from(("<a>", "<ab>", "<a>b")), parts, ends), min_size=1, max_size=2
    ).map(tuple)
    truth = st.booleans()
    return st.one_of(
        st.builds(InOrder, some),
        st.builds(OneOf, some),
        st.builds(Repeated, parts, st.integers(0, 2), st.sampled_from((2, 3, None))),
        st.builds(Tagged, st.sampled_from(("<a>", "(", "")), parts, ends),
        st.builds(TriggeredTags, st.just(("<a",)), tags, truth, truth, st.sampled_from(((), ("x",)))),
        st.builds(SeparatedTags, tags, st.sampled_from((",", "", "<")), truth, truth),
    )


def texts() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(BITS), max_size=6).map("".join)


def as_xgrammar(element: Element) -> dict[str, object]:
    """In the form that XGrammar takes."""
    match element:
        case ConstText(text):
            return {"type": "const_string", "value": text}
        case SchemaText(schema):
            return {"type": "json_schema", "json_schema": json.loads(schema)}
        case PatternText(pattern):
            return {"type": "regex", "pattern": pattern}
        case GrammarText():
            return {"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}
        case AnyText(excludes):
            return {"type": "any_text", "excludes": list(excludes)}
        case InOrder(elements):
            return {"type": "sequence", "elements": [as_xgrammar(part) for part in elements]}
        case OneOf(elements):
            return {"type": "or", "elements": [as_xgrammar(part) for part in elements]}
        case Repeated(part, least, most):
            return {"type": "repeat", "min": least, "max": -1 if most is None else most, "content": as_xgrammar(part)}
        case Tagged(begin, content, ends):
            return {"type": "tag", "begin": begin, "content": as_xgrammar(content), "end": list(ends)}
        case TriggeredTags(triggers, tags, at_least_one, stop_after_first, excludes):
            return {
                "type": "triggered_tags",
                "triggers": list(triggers),
                "tags": [as_xgrammar(tag) for tag in tags],
                "at_least_one": at_least_one,
                "stop_after_first": stop_after_first,
                "excludes": list(excludes),
            }
        case SeparatedTags(tags, separator, at_least_one, stop_after_first):
            return {
                "type": "tags_with_separator",
                "tags": [as_xgrammar(tag) for tag in tags],
                "separator": separator,
                "at_least_one": at_least_one,
                "stop_after_first": stop_after_first,
            }
