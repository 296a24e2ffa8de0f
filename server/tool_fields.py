"""The request fields about tools: which the model may call, and whether it must.

`functions` and `function_call` are the older names of `tools` and `tool_choice`; an answer to them has the older form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Raw

from ..errors import InvalidRequest, NotSupportedYet
from ..text.tool_calls import NO_PARAMETERS, Tool
from .request_body import NULL, decode_field, is_null

MAX_TOOLS = 1024
MAX_TOOL_BYTES = 1 << 20
"""Of all tools together: all of it goes into the prompt."""
_NAME = re.compile(r"[\w.\-/:]{1,128}", re.ASCII)
"""OpenAI allows 64 letters, digits, `_` and `-`; tools of other protocols have dots, slashes and colons."""


class ToolFields(msgspec.Struct, frozen=True):
    """Fields of a chat request."""

    tools: list[Raw] | None = None
    tool_choice: Raw = NULL
    parallel_tool_calls: bool | None = None
    """False: at most one call an answer."""
    functions: list[Raw] | None = None
    function_call: Raw = NULL


TOOL_DECODER = msgspec.json.Decoder(ToolFields)
TOOL_NAMES = frozenset(ToolFields.__struct_fields__)


class FunctionTool(msgspec.Struct, frozen=True):
    """`function` of a tool, or an entry of `functions`."""

    name: str
    description: str | None = None
    parameters: Raw = NULL
    strict: bool | None = None


class ToolObject(msgspec.Struct, frozen=True):
    """An entry of `tools`."""

    type: str
    function: FunctionTool | None = None


class ChosenFunction(msgspec.Struct, frozen=True):
    """Of `tool_choice` or `function_call`."""

    name: str


class ChosenTool(msgspec.Struct, frozen=True):
    """`{"type": "function", "function": {"name": ...}}`."""

    type: str
    function: ChosenFunction | None = None


class AllowedTools(msgspec.Struct, frozen=True):
    """Some of the tools, of which the model may (`auto`) or must (`required`) call."""

    mode: Literal["auto", "required"]
    tools: list[ChosenTool]


class ToolChoice(msgspec.Struct, frozen=True):
    """`tool_choice` as an object."""

    type: str
    function: ChosenFunction | None = None
    allowed_tools: AllowedTools | None = None


class ToolRequest(msgspec.Struct, frozen=True):
    """What the tools of a request come to; there is at least one."""

    tools: tuple[Tool, ...]
    """Those that may be called, in the request's order."""
    strict: frozenset[str]
    """Names of those whose arguments have to fit their schema although the model may choose to call none."""
    is_required: bool
    """The answer is a call."""
    is_parallel: bool
    """There may be more calls than one."""
    is_legacy: bool
    """Asked for with `functions`."""
    for_template: bytes
    """JSON: the tools as the client wrote them."""

    @property
    def param(self) -> str:
        """The field that they came in."""
        return "functions" if self.is_legacy else "tools"


_TOOL = msgspec.json.Decoder(ToolObject)
_FUNCTION = msgspec.json.Decoder(FunctionTool)
_CHOICE = msgspec.json.Decoder(str | ToolChoice)
_FUNCTION_CHOICE = msgspec.json.Decoder(str | ChosenFunction)
_SCHEMA = msgspec.json.Decoder(dict[str, object])


class _Choice(msgspec.Struct, frozen=True):
    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...] | None = None
    """Of those that may be called; None: all."""
    param: str = "tool_choice"


def asked_tools(fields: ToolFields) -> ToolRequest | None:
    """None: the answer has no calls, and the model hears of no tools. Raises InvalidRequest, NotSupportedYet."""
    is_legacy = bool(fields.functions)
    if is_legacy and fields.tools:
        raise InvalidRequest("tools and functions: give one of them", param="functions")
    if not is_null(fields.tool_choice) and not is_null(fields.function_call):
        raise InvalidRequest("tool_choice and function_call: give one of them", param="function_call")
    raws = (fields.functions if is_legacy else fields.tools) or []
    functions = _functions(raws) if is_legacy else _tools(raws)
    choice = _choice(fields.tool_choice) if is_null(fields.function_call) else _function_choice(fields.function_call)
    _check_choice(choice, functions)
    if choice.mode == "none" or not functions:
        return None
    chosen = [function for function in functions if choice.names is None or function.name in choice.names]
    if is_legacy:
        raws = [Raw(b'{"type":"function","function":%s}' % bytes(raw)) for raw in raws]
    told = [
        raw for raw, function in zip(raws, functions, strict=True) if choice.mode == "required" or function in chosen
    ]
    return ToolRequest(
        tools=tuple(_tool(function) for function in chosen),
        strict=frozenset(function.name for function in chosen if function.strict),
        is_required=choice.mode == "required",
        is_parallel=fields.parallel_tool_calls is not False and not is_legacy,
        is_legacy=is_legacy,
        for_template=msgspec.json.encode(told),
    )


def _tool(function: FunctionTool) -> Tool:
    return Tool(function.name, NO_PARAMETERS if is_null(function.parameters) else bytes(function.parameters))


def _tools(raws: Sequence[Raw]) -> list[FunctionTool]:
    functions: list[FunctionTool] = []
    for index, raw in enumerate(raws):
        param = f"tools[{index}]"
        tool = decode_field(raw, _TOOL, param)
        if tool.type != "function":
            raise NotSupportedYet(f"{param} of type {tool.type[:80]!r}", param=f"{param}.type")
        if tool.function is None:
            raise InvalidRequest(f"{param}.function is missing", param=f"{param}.function")
        functions.append(tool.function)
    _check_functions(functions, [f"tools[{index}].function" for index in range(len(raws))], raws)
    return functions


def _functions(raws: Sequence[Raw]) -> list[FunctionTool]:
    params = [f"functions[{index}]" for index in range(len(raws))]
    functions = [decode_field(raw, _FUNCTION, param) for raw, param in zip(raws, params, strict=True)]
    _check_functions(functions, params, raws)
    return functions


def _check_functions(functions: Sequence[FunctionTool], params: Sequence[str], raws: Sequence[Raw]) -> None:
    if len(functions) > MAX_TOOLS:
        raise InvalidRequest(f"{len(functions):,} tools, the limit is {MAX_TOOLS:,}", param="tools")
    num_bytes = sum(len(bytes(raw)) for raw in raws)
    if num_bytes > MAX_TOOL_BYTES:
        raise InvalidRequest(f"the tools have {num_bytes:,} bytes, the limit is {MAX_TOOL_BYTES:,}", param="tools")
    places: dict[str, str] = {}
    for function, param in zip(functions, params, strict=True):
        if not _NAME.fullmatch(function.name):
            raise InvalidRequest(
                f"{param}.name is {function.name[:80]!r}; a name has 1 to 128 letters, digits and _-./:",
                param=f"{param}.name",
            )
        if function.name in places:
            raise InvalidRequest(
                f"{param}.name: {function.name!r} is the name of {places[function.name]}, too", param=f"{param}.name"
            )
        places[function.name] = param
        if not is_null(function.parameters):
            _check_parameters(decode_field(function.parameters, _SCHEMA, f"{param}.parameters"), f"{param}.parameters")


def _check_parameters(schema: dict[str, object], param: str) -> None:
    """Arguments are an object; a schema need not say so."""
    if schema.get("type", "object") not in ("object", ["object"]):
        named = msgspec.json.encode(schema["type"]).decode()[:80]
        raise InvalidRequest(f'{param}.type is {named}; arguments are of type "object"', param=f"{param}.type")


def _choice(raw: Raw) -> _Choice:
    """`tool_choice`."""
    if is_null(raw):
        return _Choice("auto")
    match decode_field(raw, _CHOICE, "tool_choice"):
        case "none" | "auto" | "required" as mode:
            return _Choice(mode)
        case ToolChoice(type="function", function=ChosenFunction(name)):
            return _Choice("required", (name,), "tool_choice.function.name")
        case ToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode, tools)) if tools:
            names = tuple(tool.function.name for tool in tools if tool.type == "function" and tool.function is not None)
            if len(names) == len(tools):
                return _Choice(mode, names, "tool_choice.allowed_tools.tools")
    raise InvalidRequest(
        'tool_choice: allowed are "none", "auto", "required", {"type": "function", "function": {"name": ...}} and '
        '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}',
        param="tool_choice",
    )


def _function_choice(raw: Raw) -> _Choice:
    """`function_call`."""
    match decode_field(raw, _FUNCTION_CHOICE, "function_call"):
        case "none" | "auto" as mode:
            return _Choice(mode, param="function_call")
        case ChosenFunction(name):
            return _Choice("required", (name,), "function_call.name")
    raise InvalidRequest('function_call: allowed are "none", "auto" and {"name": ...}', param="function_call")


def _check_choice(choice: _Choice, functions: Sequence[FunctionTool]) -> None:
    if choice.mode == "none" or (choice.mode == "auto" and choice.names is None):
        return
    known = [function.name for function in functions]
    if not known:
        raise InvalidRequest(f"{choice.param}: the request has no tools to choose from", param=choice.param)
    for name in choice.names or ():
        if name not in known:
            raise InvalidRequest(f"{choice.param}: there is no tool {name[:80]!r} in the request", param=choice.param)
