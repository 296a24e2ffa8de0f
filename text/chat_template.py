"""Chat messages to text, by the model's own Jinja template, in a sandbox.

The environment is the one that templates on the Hugging Face hub are written for: trimmed blocks, `raise_exception`,
`strftime_now`, `tojson` without HTML escapes, `break` and `continue`, `{% generation %}`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ..errors import ConfigError, InvalidRequest
from ..mailbox.messages.requests import ChatMessage, ToolCall

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

# What a template can raise on messages that its author did not think of; it is the request's fault or the template's,
# never the engine's.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)


SYNTAX_ADVICE = "correct it, or give another file with [model] chat_template"


class ChatTemplate:
    """A compiled template. Rendering may run in several threads.

    The sandbox keeps a template from Python's internals and from changing what it is given, and caps `range`; it does
    not bound time or memory: a template with nested loops can run for very long. It comes from whoever chose the model,
    never from a client.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, where: str = "the chat template") -> None:
        """`special_tokens`: `bos_token`, `eos_token`, ... -> text, visible to the template under these names.

        Raises ConfigError for a syntax error, naming `where` and the line.
        """
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["namespace"] = _GuardedNamespace
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"{where} has a syntax error in line {error.lineno}: {error.message}", advice=SYNTAX_ADVICE
            ) from error
        except RecursionError as error:
            raise ConfigError(f"{where} is nested too deeply", advice=SYNTAX_ADVICE) from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool = True,
        *,
        now: datetime.datetime | None = None,
    ) -> str:
        """The prompt's text, special tokens written out: encode it with `add_special_tokens=False`.

        `add_generation_prompt`: end with what opens an answer. `now`: what the template's `strftime_now` tells,
        by default the clock's; give the request's arrival where a prompt must be rebuilt the same.
        Raises InvalidRequest with the template's own message.
        """

        def strftime_now(format: str) -> str:
            return (datetime.datetime.now() if now is None else now).strftime(format)

        seen = [_as_template_sees(message) for message in messages]
        try:
            return self._render(seen, add_generation_prompt, strftime_now)
        except TypeError as error:
            # Many templates join `message['content']` with text and know no message without content, such as one that
            # only calls tools; others ask whether it is None. So None comes first, and "" where that cannot be joined.
            if all(message["content"] is not None for message in seen):
                raise _unrenderable(error) from error
        except _RENDER_ERRORS as error:
            raise _unrenderable(error) from error
        try:
            with_text = [{**message, "content": message["content"] or ""} for message in seen]
            return self._render(with_text, add_generation_prompt, strftime_now)
        except _RENDER_ERRORS as error:
            raise _unrenderable(error) from error

    def _render(
        self, messages: list[dict[str, JSON]], add_generation_prompt: bool, strftime_now: Callable[[str], str]
    ) -> str:
        return self._template.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            strftime_now=strftime_now,
            **self._special_tokens,
        )


def _unrenderable(error: Exception) -> InvalidRequest:
    reason = getattr(error, "message", None) or str(error) or type(error).__name__
    return InvalidRequest(f"the chat template cannot render these messages: {reason}", param="messages")


def _as_template_sees(message: ChatMessage) -> dict[str, JSON]:
    """The message as a dict with the keys that templates test for; no `name` is no key, no content is None."""
    seen: dict[str, JSON] = {"role": message.role, "content": message.content}
    if message.name is not None:
        seen["name"] = message.name
    if message.tool_calls:
        seen["tool_calls"] = [_call_as_template_sees(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        seen["tool_call_id"] = message.tool_call_id
    return seen


def _call_as_template_sees(call: ToolCall) -> dict[str, JSON]:
    """Templates expect arguments as an object; what is no JSON object stays the client's text."""
    arguments: JSON = call.arguments
    try:
        parsed = json.loads(call.arguments)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        arguments = parsed
    return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}}


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
