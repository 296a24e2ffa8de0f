"""What a chat request comes to besides its prompt: the form that the answer must have, and how it will be read."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import InvalidRequest
from ..mailbox.messages.grammar import ContentOrCalls, OutputFormat, Tag, TagsFormat
from ..mailbox.messages.requests import ReasoningMarks
from ..text.reasoning import STYLES, Channels
from ..text.tool_calls import FAMILIES, tool_tags
from .answer_parser import Parsing
from .format_fields import AskedFormat
from .served_model import ServedModel
from .tool_fields import ToolRequest

_STYLES: dict[str, Literal["qwen_xml", "glm_xml"]] = {"qwen3_coder": "qwen_xml", "glm": "glm_xml"}
"""Families whose arguments are not written as JSON."""
_ANY_ARGUMENTS = '{"type":"object"}'
_HARMONY_ANALYSIS = "<|channel|>analysis<|message|>"
_HARMONY_NEXT = "<|end|><|start|>assistant"
_SAYS_TYPE = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf"})


class AnswerPlan(msgspec.Struct, frozen=True):
    """Of all answers to one request."""

    output_format: OutputFormat | None = None
    format_param: str | None = None
    """The field that it came from."""
    parsing: Parsing | None = None
    """None: the text is the content."""
    reasoning: ReasoningMarks | None = None
    kept_markers: tuple[str, ...] = ()


NO_PLAN = AnswerPlan()
"""Text."""


def answer_plan(
    tools: ToolRequest | None,
    asked: AskedFormat | None,
    model: ServedModel,
    *,
    num_calls_before: int,
    shows_reasoning: bool,
    parses_reasoning: bool,
) -> AnswerPlan:
    """`num_calls_before`: calls in the request's messages. `parses_reasoning` False: it stays in the content.

    Raises InvalidRequest for tools on a server that reads no calls, or whose calls look like content where either may
    come.
    """
    _check(tools, model)
    style = model.reasoning_style
    output_format, param = _output_format(tools, asked, model)
    parsing = Parsing(reasoning=style if parses_reasoning else "", shows_reasoning=shows_reasoning)
    is_read_whole = parses_reasoning or not style
    """Else what comes first is reasoning, in the content."""
    if tools is not None:
        parsing = msgspec.structs.replace(
            parsing,
            family=model.tool_family,
            tools=tools.tools,
            is_parallel=tools.is_parallel,
            are_held=output_format is not None,
            are_all=tools.is_required and is_read_whole,
            marks=_marks_of_calls(output_format, model) if is_read_whole else (),
            is_legacy=tools.is_legacy,
            num_calls_before=num_calls_before,
        )
    markers = FAMILIES[parsing.family].markers if parsing.family else ()
    if parsing.reasoning:
        markers += STYLES[style].markers
    return AnswerPlan(
        output_format=output_format,
        format_param=param,
        parsing=parsing if parsing.family or parsing.reasoning else None,
        reasoning=_marks(style, output_format) if style and (parsing.reasoning or output_format) else None,
        kept_markers=tuple(dict.fromkeys(markers)),
    )


def _check(tools: ToolRequest | None, model: ServedModel) -> None:
    if tools is not None and not model.tool_family:
        raise InvalidRequest(
            f"{tools.param}: this server reads no tool calls (model.tool_call_parser in the topology is none); leave "
            "them out",
            param=tools.param,
            code="not_supported",
        )


def _output_format(
    tools: ToolRequest | None, asked: AskedFormat | None, model: ServedModel
) -> tuple[OutputFormat | None, str | None]:
    """The form, and the field that it came from. Where a call must come the format has nothing to hold."""
    if tools is None:
        return (None, None) if asked is None else (asked.format, asked.param)
    if asked is not None and not tools.is_required:
        return _content_or_calls(asked, tools, model), asked.param
    if not tools.is_required and not tools.strict:
        return None, tools.param
    return _calls(tools, model.tool_family, is_all=tools.is_required), tools.param


def _content_or_calls(asked: AskedFormat, tools: ToolRequest, model: ServedModel) -> ContentOrCalls:
    """Raises InvalidRequest for a family without a mark before its calls."""
    written = FAMILIES[model.tool_family].written
    mark = written.mark_beside_content if written.is_trigger_at_start else written.trigger
    if not mark:
        raise InvalidRequest(
            f"{asked.param} beside tools that the model may call or not is not supported for tool calls of the family "
            f"{model.tool_family}, which nothing tells apart from content: set tool_choice to "
            '"none" for an answer in the format, to "required" for a call',
            param=asked.param,
            code="not_supported",
        )
    calls = _calls(tools, model.tool_family, is_all=True)
    style = STYLES.get(model.reasoning_style)
    return ContentOrCalls(
        asked.format,
        msgspec.structs.replace(calls, prefix=written.mark_beside_content + calls.prefix),
        mark,
        content_begin=style.content_begin if isinstance(style, Channels) else "",
    )


def _marks_of_calls(output_format: OutputFormat | None, model: ServedModel) -> tuple[str, ...]:
    """With what an answer begins that is calls, if it may be either; in it the reasoning's parser leaves the head of a
    message."""
    if not isinstance(output_format, ContentOrCalls):
        return ()
    after_reasoning = FAMILIES[model.tool_family].written.prefix_after_reasoning or ""
    return tuple(dict.fromkeys((output_format.mark, after_reasoning + output_format.mark)))


def _calls(tools: ToolRequest, family_name: str, *, is_all: bool) -> TagsFormat:
    """`is_all`: there is nothing but calls, of which there is at least one. Where the model may choose to make none,
    only the arguments of strict tools are held to their schema."""
    tags = tool_tags(FAMILIES[family_name], tools.tools, is_parallel=tools.is_parallel)
    is_held = {tool.name: tools.is_required or tool.name in tools.strict for tool in tools.tools}
    style: Literal["json", "qwen_xml", "glm_xml"] = _STYLES.get(family_name, "json")
    return TagsFormat(
        tags=tuple(
            Tag(tag.begin, _schema(tag.schema) if is_held[tag.name] else _ANY_ARGUMENTS, tag.end, style)
            for tag in tags.tags
        ),
        triggers=() if is_all else tags.triggers,
        prefix=tags.prefix,
        separator=tags.separator,
        suffix=tags.suffix,
        at_least_one=is_all,
        at_most_one=not tools.is_parallel,
    )


def _schema(schema: bytes) -> str:
    """Arguments are an object whether or not the schema says so."""
    named = msgspec.json.decode(schema, type=dict[str, msgspec.Raw])
    if not _SAYS_TYPE & named.keys():
        named["type"] = msgspec.Raw(b'"object"')
    return msgspec.json.encode(named).decode()


def _marks(style_name: str, output_format: OutputFormat | None) -> ReasoningMarks:
    """Where the reasoning stands, and where a grammar starts to hold."""
    style = STYLES[style_name]
    if not isinstance(style, Channels):
        return ReasoningMarks(style_name, style.begin, style.end)
    match output_format:
        case TagsFormat(triggers=()) | ContentOrCalls():  # in messages of their own, behind an analysis or at once
            return ReasoningMarks(style_name, _HARMONY_ANALYSIS, _HARMONY_NEXT)
        case TagsFormat():  # which begin wherever a trigger comes up
            return ReasoningMarks(style_name, "", "")
        case _:
            return ReasoningMarks(style_name, "", style.content_begin)
