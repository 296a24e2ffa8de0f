"""What a grammar needs so that a model writes calls of these tools and nothing else in their place."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from .form import Family
from .tools import Tool


class ParameterMarks(msgspec.Struct, frozen=True):
    """Arguments one by one: `begin`, the key, `after_key`, the value, `end`, for each in turn.

    A value whose type is string is plain text without `end` in it, any other is JSON of its schema.
    """

    begin: str
    after_key: str
    end: str


class ToolTag(msgspec.Struct, frozen=True):
    """A call of one tool: `begin`, the arguments, `end`. The tool's name is in `begin`."""

    name: str
    begin: str
    schema: bytes
    """JSON schema of the arguments."""
    end: str


class ToolTags(msgspec.Struct, frozen=True):
    """`prefix`, one of `tags`, then `separator` and another one any number of times, `suffix`."""

    tags: tuple[ToolTag, ...]
    prefix: str
    separator: str
    suffix: str
    triggers: tuple[str, ...]
    """Where the model may choose: text that must be followed by calls. `prefix + begin` starts with one of them."""
    is_trigger_at_start: bool
    """The triggers count at the beginning of the content only."""
    parameters: ParameterMarks | None
    """None: the arguments are a JSON value."""


def tool_tags(
    family: Family, tools: Sequence[Tool], *, is_parallel: bool = True, is_after_reasoning: bool = False
) -> ToolTags:
    """The tags of the tools that may be called. `is_parallel` False: exactly one call, with no list around it.

    `is_after_reasoning`: a reasoning section comes before the grammar.
    """
    written = family.written
    prefix = written.prefix
    if is_after_reasoning and written.prefix_after_reasoning is not None:
        prefix = written.prefix_after_reasoning
    is_bare = written.is_one_bare and not is_parallel
    form = family.parameters
    return ToolTags(
        tags=tuple(
            ToolTag(tool.name, written.begin.replace("NAME", _name(tool.name)), tool.parameters, written.end)
            for tool in tools
        ),
        prefix="" if is_bare else prefix,
        separator=written.separator,
        suffix="" if is_bare else written.suffix,
        triggers=(written.begin.partition("NAME")[0] if is_bare else written.trigger,),
        is_trigger_at_start=written.is_trigger_at_start,
        parameters=None if form is None else ParameterMarks(form.begin, form.written_key, form.written_end),
    )


def _name(name: str) -> str:
    """As within a JSON string."""
    return json.dumps(name, ensure_ascii=False)[1:-1]
