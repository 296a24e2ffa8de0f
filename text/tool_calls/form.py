"""What the table of families has in a row."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from .pattern import Pattern, Run


class Place(enum.Enum):
    """Where in an answer a form counts as a call."""

    ANYWHERE = enum.auto()
    AT_START = enum.auto()
    """Only white space before it: a bare JSON object further on is text."""
    AFTER_CALL = enum.auto()
    """Directly after a call: the next of a list."""


class ParameterForm(msgspec.Struct, frozen=True):
    """Arguments that are written one by one, each value as plain text if it is a string and as JSON if not."""

    begin: str
    key: Run
    after_key: Pattern
    """What stands between a key and its value."""
    end: str
    call_ends: tuple[str, ...]
    """What may follow the last parameter. A value's `end` counts if this or the next `begin` follows: a value may have
    the end marker in it."""
    is_value_in_lines: bool
    """One line break at each side of the value belongs to the form."""
    written_key: str
    """As a model writes it: behind a parameter's key ..."""
    written_end: str
    """... and behind its value."""


class BodyKind(enum.Enum):
    """What follows what a form's pattern matches."""

    ARGUMENTS = enum.auto()
    """The JSON value of the arguments."""
    OBJECT_REST = enum.auto()
    """The JSON value of the arguments as the last known member of the call's object, and the object's end."""
    OBJECT = enum.auto()
    """The call's object, whose members come in another order than name and arguments."""
    PARAMETERS = enum.auto()


class Form(msgspec.Struct, frozen=True):
    """One way to begin a call."""

    pattern: Pattern
    """Up to the arguments; the name is in it, but with `BodyKind.OBJECT`."""
    body: BodyKind
    place: Place = Place.ANYWHERE


class Written(msgspec.Struct, frozen=True):
    """How a grammar makes a model write calls; `NAME` in `begin` stands for the name.

    In `begin` of forms with a JSON object the name is written as within a JSON string.
    """

    begin: str
    end: str
    prefix: str = ""
    """Before the first call."""
    separator: str = ""
    """Between two calls."""
    suffix: str = ""
    """After the last call."""
    is_one_bare: bool = False
    """A single call may stand without `prefix` and `suffix`."""
    trigger: str = ""
    """Text that begins calls when the model may choose to make any: `prefix + begin` starts with it."""
    is_trigger_at_start: bool = False
    """The trigger counts at the beginning of the content only."""
    mark_beside_content: str = ""
    """Before the first call where the answer may be content instead, for calls that look like content without."""
    prefix_after_reasoning: str | None = None
    """In place of `prefix` where a reasoning section was closed before; None: the same."""


class Family(msgspec.Struct, frozen=True):
    """A row of the table."""

    name: str
    markers: tuple[str, ...]
    """Tokens of their own in the vocabulary, some of them special: a detokenizer that skips those must keep these."""
    forms: tuple[Form, ...]
    """At one place of the text the first that matches counts."""
    tail: Pattern
    """What may follow a call's body and is no content."""
    stops: tuple[str, ...]
    """Markers that end a JSON value whose brackets are not all closed."""
    written: Written
    parameters: ParameterForm | None = None
    call_id: Literal["plain", "nine", "numbered"] = "plain"
    """What an id is like: `call_` and 24 letters and digits; 9 letters and digits; `functions.NAME:INDEX`."""
    template_signs: tuple[tuple[str, ...], ...] = ()
    """The family is recognised by a chat template in which all texts of one of these groups stand."""
