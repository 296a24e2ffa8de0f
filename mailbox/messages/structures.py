"""What answers consist of, as XGrammar's structural tags say it: texts, pieces of a form, and how they are put together.

https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html. The names of its kinds are in `server/structure_fields.py`.
"""

from __future__ import annotations

import msgspec


class ConstText(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """This text."""

    text: str


class SchemaText(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """A JSON value that the schema, JSON text, accepts."""

    schema: str


class PatternText(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """A text that matches the regular expression as a whole."""

    pattern: str


class GrammarText(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """A sentence of a grammar, as much of the text as it can take."""

    grammar: str


class AnyText(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Any text without these in it, nor what ends the tag at whose end it stands."""

    excludes: tuple[str, ...] = ()


class InOrder(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """One behind the other."""

    elements: tuple[Element, ...]


class OneOf(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """One of them."""

    elements: tuple[Element, ...]


class Repeated(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """So many times; `most` None: without a bound."""

    element: Element
    least: int
    most: int | None


class Tagged(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    """`begin`, the content, one of `ends`."""

    begin: str
    content: Element
    ends: tuple[str, ...]


class TriggeredTags(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=9):
    """Free text in which a tag follows wherever a trigger comes up, which is the beginning of the tag's `begin`."""

    triggers: tuple[str, ...]
    tags: tuple[Tagged, ...]
    at_least_one: bool
    """A tag comes first."""
    stop_after_first: bool
    excludes: tuple[str, ...]
    """What no free text holds."""


class SeparatedTags(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=10):
    """Tags with the separator between them, and nothing else."""

    tags: tuple[Tagged, ...]
    separator: str
    at_least_one: bool
    stop_after_first: bool


Element = (
    ConstText
    | SchemaText
    | PatternText
    | GrammarText
    | AnyText
    | InOrder
    | OneOf
    | Repeated
    | Tagged
    | TriggeredTags
    | SeparatedTags
)


def texts_of(element: Element) -> list[str]:
    """All that a client wrote of it."""
    match element:
        case ConstText(text) | SchemaText(text) | PatternText(text) | GrammarText(text):
            return [text]
        case AnyText(excludes):
            return list(excludes)
        case InOrder(elements) | OneOf(elements):
            return [text for part in elements for text in texts_of(part)]
        case Repeated(part):
            return texts_of(part)
        case Tagged(begin, content, ends):
            return [begin, *texts_of(content), *ends]
        case TriggeredTags(triggers, tags, _, _, excludes):
            return [*triggers, *excludes, *(text for tag in tags for text in texts_of(tag))]
        case SeparatedTags(tags, separator):
            return [separator, *(text for tag in tags for text in texts_of(tag))]
