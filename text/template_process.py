"""A process that renders chat templates and does nothing else; `render_process.py` starts it and tells the protocol.

A template comes with the model, from anybody. Jinja's sandbox keeps it from Python's internals, but one operation
(`'a' * 10 ** 10`, a list that holds the last one twice, forty times over) takes any time and memory, in C code that no
other thread can end. The kernel can: this process has limits on processor time and memory, and dies of them alone.

Run by path, with the standard library and Jinja only, so that it starts in a moment. The environment is the one that
templates on the Hugging Face hub are written for: trimmed blocks, `raise_exception`, `strftime_now`, `tojson` without
HTML escapes, `break` and `continue`, `{% generation %}`.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import resource
import signal
import socket
import struct
import sys
import typing
from collections.abc import Callable
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
Message = dict[str, typing.Any]

TEXT, SYNTAX, FAILED, LIMIT = b"T", b"S", b"F", b"L"
"""Kinds of answers: the rendered text; a sentence about the template's syntax, these messages, a limit."""

QUESTION_HEAD = struct.Struct("<Q")
ANSWER_HEAD = struct.Struct("<cQ")
MAX_SENTENCE_CHARS = 2000


def main(processor_s: float, memory_bytes: int, output_chars: int) -> int:
    """Answer questions from the socket that is standard input until its other end closes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole group; the end of the socket is this process's sign
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is in
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = socket.socket(fileno=0)
    try:
        with channel, channel.makefile("rb") as questions:
            while len(head := questions.read(QUESTION_HEAD.size)) == QUESTION_HEAD.size:
                signal.setitimer(signal.ITIMER_PROF, processor_s)
                try:
                    kind, sentence = answer(questions.read(QUESTION_HEAD.unpack(head)[0]), output_chars)
                    data = sentence.encode("utf-8", "surrogatepass")
                except MemoryError:
                    kind, data = LIMIT, f"it needs more than {memory_bytes:,} bytes of memory".encode()
                signal.setitimer(signal.ITIMER_PROF, 0)
                channel.sendall(ANSWER_HEAD.pack(kind, len(data)) + data)
                if kind == LIMIT:
                    return 0  # what is left of the memory is in pieces: a new process begins afresh
    except ConnectionError:
        pass  # the asker has died
    return 0


def answer(question: bytes, output_chars: int) -> tuple[bytes, str]:
    """Kind and text of the answer to `question`, the JSON of `chat_template.Question`."""
    asked = json.loads(question)
    try:
        template = compile_template(asked["source"])
    except jinja2.TemplateSyntaxError as error:
        return SYNTAX, f"has a syntax error in line {error.lineno}: {error.message}"[:MAX_SENTENCE_CHARS]
    except (RecursionError, SyntaxError):  # SyntaxError: Python's own, for what is nested deeper than it compiles
        return SYNTAX, "is nested too deeply"
    except (ArithmeticError, ValueError) as error:  # of a constant, such as a number of 10,000 digits
        return SYNTAX, f"cannot be compiled: {error}"[:MAX_SENTENCE_CHARS]
    if asked["messages"] is None:
        return TEXT, ""
    try:
        text = render(template, asked)
    except MemoryError:
        raise
    except Exception as error:  # whatever a template can raise on messages that its author did not think of
        sentence = getattr(error, "message", None) or str(error) or type(error).__name__
        return FAILED, str(sentence)[:MAX_SENTENCE_CHARS]
    if len(text) > output_chars:
        return FAILED, f"the text has {len(text):,} characters, the limit is {output_chars:,}"
    return TEXT, text


def render(template: Callable[..., str], asked: dict[str, typing.Any]) -> str:
    """The prompt's text. Raises whatever the template does."""
    now = None if asked["now"] is None else datetime.datetime.fromisoformat(asked["now"])
    variables = {
        "documents": None,
        **(json.loads(asked["template_kwargs"]) if asked["template_kwargs"] else {}),
        "tools": json.loads(asked["tools"]) if asked["tools"] else None,
        "add_generation_prompt": asked["add_generation_prompt"],
        "strftime_now": lambda format: (datetime.datetime.now() if now is None else now).strftime(format),
        **asked["special_tokens"],
    }
    messages = asked["messages"]
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            _parse_arguments(call)
    if not asked["continue_final_message"]:
        return _render_messages(template, messages, variables)
    final = messages[-1]["content"] if messages else None
    if final is None:
        raise jinja2.TemplateError("the final message has no content that could be continued")
    mark = os.urandom(8).hex()  # which stands in no message
    marked = [*messages[:-1], {**messages[-1], "content": f"{final}{mark} "}]
    return _cut_at(mark, final, _render_messages(template, marked, variables))


def _render_messages(template: Callable[..., str], messages: list[Message], variables: dict[str, object]) -> str:
    try:
        return template({**variables, "messages": messages})
    except TypeError:
        # Many templates join `message['content']` with text and know no message without content, such as one that only
        # calls tools; others ask whether it is None. So None comes first, and "" where that cannot be joined.
        if all(message["content"] is not None for message in messages):
            raise
    joinable = [{**message, "content": message["content"] or ""} for message in messages]
    return template({**variables, "messages": joinable})


def _cut_at(mark: str, final: str, text: str) -> str:
    """`text` up to where the final message's content ends, with `mark` and a space behind it, for the last time.

    A template that trimmed the space would have trimmed what is before the mark: as in transformers.
    """
    place = text.rfind(mark)
    if place < 0 or final.strip() not in text:
        raise jinja2.TemplateError("the final message, which is to be continued, is not in the text as it is")
    cut = text[:place].replace(f"{mark} ", "").replace(mark, "")
    return cut if text.startswith(" ", place + len(mark)) else cut.rstrip()


def _parse_arguments(call: JSON) -> None:
    """Templates expect a tool call's arguments as an object; none at all are one without members, and what else is
    no JSON object stays the client's text."""
    function = call["function"] if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments := function["arguments"], str):
        return
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return
    if isinstance(parsed, dict):
        function["arguments"] = parsed


@functools.lru_cache(maxsize=4)
def compile_template(source: str) -> Callable[..., str]:
    """`render` of the compiled template."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["namespace"] = _GuardedNamespace
    return environment.from_string(source).render


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: JSON,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GuardedNamespace(Namespace):
    """`namespace(...)` without names that begin with an underscore, which Python or Jinja could take for its own."""

    def __init__(*args: object, **fields: object) -> None:
        for name in fields:
            _check_field(name)
        Namespace.__init__(*args, **fields)

    def __setitem__(self, name: str, value: object) -> None:
        _check_field(name)
        super().__setitem__(name, value)


def _check_field(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace must not have the field {name!r}")


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks answers for training: its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
