"""Texts with tool calls, written without the table that the parser reads them by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from callboard.text.tool_calls import (
    FAMILIES,
    ArgumentsPiece,
    CallBegun,
    Content,
    Delta,
    Family,
    Tool,
    ToolCallParser,
)

RECORDED = Path(__file__).parent.parent / "data" / "tool_calls" / "recorded.jsonl"

PROPERTIES = {
    "get_weather": {"city": {"type": "string"}, "unit": {"type": "string"}, "days": {"type": "integer"}},
    "get_time": {"zone": {"type": "string"}},
    "run": {
        "code": {"type": "string"},
        "timeout": {"type": "number"},
        "env": {"type": "object"},
        "is_dry": {"type": "boolean"},
    },
}
TOOLS = [
    Tool(name, json.dumps({"type": "object", "properties": properties}).encode())
    for name, properties in PROPERTIES.items()
]


class Recorded(msgspec.Struct, frozen=True):
    """A text of the documented form of a family, and what is in it."""

    family: str
    what: str
    text: str
    content: str
    calls: list[tuple[str, str]]


class Read(msgspec.Struct, frozen=True):
    """All deltas of an answer joined: the content, and name and arguments of each call."""

    content: str
    calls: list[tuple[str, str]]


def recorded() -> list[Recorded]:
    return [msgspec.json.decode(line, type=Recorded) for line in RECORDED.read_bytes().splitlines()]


def joined(deltas: Iterable[Delta]) -> Read:
    """Joins deltas as a client does, and checks their order."""
    content: list[str] = []
    names: list[str] = []
    arguments: list[str] = []
    for delta in deltas:
        match delta:
            case Content(text=text):
                assert text
                content.append(text)
            case CallBegun(index=index, id=call_id, name=name):
                assert (index, call_id) == (len(names), f"id-{index}-{name}")
                names.append(name)
                arguments.append("")
            case ArgumentsPiece(index=index, text=text):
                assert text and index == len(names) - 1
                arguments[-1] += text
    return Read("".join(content), list(zip(names, arguments, strict=True)))


def make_parser(family: Family, tools: Sequence[Tool] = TOOLS, is_parallel: bool = True) -> ToolCallParser:
    return ToolCallParser(family, tools, lambda index, name: f"id-{index}-{name}", is_parallel=is_parallel)


def deltas_of(
    family: str, pieces: Iterable[str], tools: Sequence[Tool] = TOOLS, *, is_parallel: bool = True
) -> list[Delta]:
    parser = make_parser(FAMILIES[family], tools, is_parallel)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    assert parser.num_calls == sum(isinstance(delta, CallBegun) for delta in deltas)
    return deltas


def read(family: str, pieces: Iterable[str], tools: Sequence[Tool] = TOOLS, *, is_parallel: bool = True) -> Read:
    return joined(deltas_of(family, pieces, tools, is_parallel=is_parallel))


def write_calls(family: str, calls: Sequence[tuple[str, str]]) -> str:
    """Calls with arguments as JSON text, as the family's chat template renders them."""
    match family:
        case "hermes":
            return "\n".join(
                f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>' for name, text in calls
            )
        case "llama3":
            return "; ".join(f'{{"name": "{name}", "parameters": {text}}}' for name, text in calls)
        case "json":
            return "[" + ", ".join(f'{{"name": "{name}", "arguments": {text}}}' for name, text in calls) + "]"
        case "mistral":
            listed = (f'{{"name": "{name}", "arguments": {text}, "id": "A1b2C3d4E"}}' for name, text in calls)
            return "[TOOL_CALLS][" + ", ".join(listed) + "]"
        case "mistral_args":
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{text}" for name, text in calls)
        case "deepseek_v3":
            listed = (
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
                for name, text in calls
            )
            return "<｜tool▁calls▁begin｜>" + "\n".join(listed) + "<｜tool▁calls▁end｜>"
        case "deepseek_v31":
            listed = (f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>" for name, text in calls)
            return "<｜tool▁calls▁begin｜>" + "".join(listed) + "<｜tool▁calls▁end｜>"
        case "kimi_k2":
            listed = (
                f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{text}<|tool_call_end|>"
                for index, (name, text) in enumerate(calls)
            )
            return "<|tool_calls_section_begin|>" + "".join(listed) + "<|tool_calls_section_end|>"
        case "harmony":
            return "<|start|>assistant".join(
                f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}<|call|>"
                for name, text in calls
            )
        case "qwen3_coder":
            return "\n".join(
                f"<tool_call>\n<function={name}>\n"
                + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in plain_values(text))
                + "</function>\n</tool_call>"
                for name, text in calls
            )
        case "glm":
            return "\n".join(
                f"<tool_call>{name}\n"
                + "".join(
                    f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in plain_values(text)
                )
                + "</tool_call>"
                for name, text in calls
            )
    raise AssertionError(family)


def plain_values(arguments: str) -> list[tuple[str, str]]:
    """Of arguments as JSON, each value as XML forms have it: a string as it is, others as JSON."""
    values = json.loads(arguments).items()
    return [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in values]
