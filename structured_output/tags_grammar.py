"""Tagged pieces such as tool calls, alone or within free text, as a grammar in Lark's notation.

Free text ends where a trigger comes up: as a text it is searched for in whatever tokens come; as a special token it is
that token, and its text spelled out in letters is not allowed.
"""

from __future__ import annotations

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import Tag, TagsFormat
from .json_text import json_rule
from .lark_text import Markup, either, joined, without
from .schema_check import checked_schema
from .tagged_values import tagged_body
from .vocabulary import Vocabulary


def tags_grammar(form: TagsFormat, vocabulary: Vocabulary) -> str:
    """A grammar with the rule `start`. Raises GrammarRefused."""
    if not form.tags:
        raise GrammarRefused("there are no tags")
    return _TagsGrammar(form, Markup(vocabulary)).text()


class _TagsGrammar:
    def __init__(self, form: TagsFormat, markup: Markup) -> None:
        self._form = form
        self._markup = markup
        self._rules: list[str] = []

    def text(self) -> str:
        bodies = [self._body(number, tag) for number, tag in enumerate(self._form.tags)]
        if not self._form.triggers:
            start = self._forced(bodies)
        elif self._form.prefix:
            start = self._one_section(bodies)
        else:
            start = self._anywhere(bodies)
        return "\n".join([f"start: {start}", *self._rules])

    def _body(self, number: int, tag: Tag) -> str:
        """What follows a tag's `begin`."""
        schema = checked_schema(tag.schema)
        if tag.style == "json":
            body = json_rule(schema)
        else:
            body, rules = tagged_body(schema, tag.style, f"v{number}")
            self._rules += rules
        self._rules.append(f"body_{number}: {body} {self._markup.last_sequence(tag.end)}")
        return f"body_{number}"

    def _run(self, bodies: list[str]) -> str:
        """All pieces from the first to the last, of which there is at least one."""
        begun = (
            f"{self._markup.sequence(tag.begin)} {body}" for tag, body in zip(self._form.tags, bodies, strict=True)
        )
        self._rules.append(f"piece: {either(begun)}")
        if self._form.at_most_one:
            return "piece"
        return f"piece ({self._markup.sequence(self._form.separator)} piece)*"

    def _forced(self, bodies: list[str]) -> str:
        sequence = self._markup.sequence
        run = f"{sequence(self._form.prefix)} {self._run(bodies)} {self._markup.last_sequence(self._form.suffix)}"
        return run if self._form.at_least_one else f"({run})?"

    def _one_section(self, bodies: list[str]) -> str:
        """Free text, the prefix, the pieces, the suffix, free text."""
        following = f"{self._run(bodies)} {self._markup.last_sequence(self._form.suffix)}"
        section = either(
            f"{self._head(number, trigger)} {self._rest(self._form.prefix, trigger)} {following}"
            for number, trigger in enumerate(self._form.triggers)
            if self._form.prefix.startswith(trigger)
        )
        if section == "()":
            raise GrammarRefused("no trigger is the beginning of the prefix")
        return self._with_free_text(section, can_repeat=False)

    def _anywhere(self, bodies: list[str]) -> str:
        """Free text with pieces in it, each of which a trigger begins."""
        after: dict[str, list[str]] = {trigger: [] for trigger in self._form.triggers}
        for tag, body in zip(self._form.tags, bodies, strict=True):
            trigger = min((t for t in self._form.triggers if tag.begin.startswith(t)), key=len, default=None)
            if not trigger:
                raise GrammarRefused(f"no trigger is the beginning of the tag {tag.begin[:100]!r}")
            after[trigger].append(f"{self._rest(tag.begin, trigger)} {body}")
        pieces = [
            f"{self._head(number, trigger)} {either(rests)}"
            for number, (trigger, rests) in enumerate(after.items())
            if rests
        ]
        return self._with_free_text(either(pieces), can_repeat=not self._form.at_most_one)

    def _with_free_text(self, piece: str, can_repeat: bool) -> str:
        self._rules.append(f"piece_in_text: {piece}")
        self._rules.append(f"TEXT: {without(self._form.triggers)}")
        count = ("+" if can_repeat else "") if self._form.at_least_one else ("*" if can_repeat else "?")
        return f"piece_in_text{count} TEXT"

    def _head(self, number: int, trigger: str) -> str:
        """Free text up to the trigger, and the trigger."""
        first, *others = self._markup.pieces(trigger)
        if isinstance(first, int):
            return f"TEXT {joined([first, *others])}"
        self._rules.append(f"head_{number}[lazy]: TEXT {joined([first])}")
        return f"head_{number} {joined(others)}"

    def _rest(self, text: str, trigger: str) -> str:
        return self._markup.sequence(text[len(trigger) :])
