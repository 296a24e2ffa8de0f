"""Chat messages to text, by the model's own Jinja template, in a process of its own with limits.

Which variables and functions a template finds is written down in `template_process.py`.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

import msgspec

from ..errors import ConfigError, EngineFailure, InvalidRequest
from ..mailbox.messages.requests import ChatMessage
from .render_process import Kind, RenderProcess, shared

SYNTAX_ADVICE = "correct it, or give another file with [model] chat_template"
MAX_SOURCE_CHARS = 1 << 20
"""Templates in use have under 100,000 characters."""

RESERVED_NAMES = frozenset(
    {
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
        "strftime_now",
        "raise_exception",
        "namespace",
    }
)
"""Variables and functions of a template that are not the client's, beside the special tokens."""

SeenCall = dict[str, str | dict[str, str]]
SeenMessage = dict[str, str | list[SeenCall] | None]


class Question(msgspec.Struct, frozen=True):
    """What the process is asked; `messages` None: only to compile."""

    source: str
    special_tokens: dict[str, str]
    messages: list[SeenMessage] | None = None
    add_generation_prompt: bool = True
    now: str | None = None
    """Local time in ISO format; None: the clock's."""
    continue_final_message: bool = False
    template_kwargs: str = ""
    """A JSON object of further variables, as text: the process reads it under its limits. Empty: none."""
    tools: str = ""
    """A JSON list, as text. Empty: none."""


class ChatTemplate:
    """A template that compiles. Rendering may be asked for in several threads; it is done one after the other.

    A template that takes too much time, memory or text fails the request at hand; see `RenderLimits`.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        where: str = "the chat template",
        process: RenderProcess = shared,
    ) -> None:
        """`special_tokens`: `bos_token`, `eos_token`, ... -> text, visible to the template under these names.

        Raises ConfigError for a template that cannot be compiled within the limits, naming `where` and the line.
        """
        if len(source) > MAX_SOURCE_CHARS:
            raise ConfigError(
                f"{where} has {len(source):,} characters, the limit is {MAX_SOURCE_CHARS:,}", advice=SYNTAX_ADVICE
            )
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._process = process
        try:
            answer = process.ask(msgspec.json.encode(Question(source, self._special_tokens)))
        except UnicodeEncodeError as error:
            raise ConfigError(f"{where} is not valid Unicode: {error}", advice=SYNTAX_ADVICE) from error
        match answer.kind:
            case Kind.TEXT:
                return
            case Kind.SYNTAX:
                raise ConfigError(f"{where} {answer.text}", advice=SYNTAX_ADVICE)
            case _:
                raise ConfigError(f"{where} cannot be compiled: {answer.text}", advice=SYNTAX_ADVICE)

    def render(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool = True,
        *,
        now: datetime.datetime | None = None,
        continue_final_message: bool = False,
        template_kwargs: bytes = b"",
        tools: bytes = b"",
    ) -> str:
        """The prompt's text, special tokens written out: encode it with `add_special_tokens=False`.

        `add_generation_prompt`: end with what opens an answer. `now`: what the template's `strftime_now` tells,
        by default the clock's; give the request's arrival where a prompt must be rebuilt the same.
        `continue_final_message`: end with the content of the last message, so that an answer goes on in it; without
        the spaces at its end if the template trims them. `template_kwargs`: a JSON object of further variables.
        `tools`: a JSON list of what the model may call.
        Raises InvalidRequest with the template's own message or the limit, EngineFailure if nothing can be rendered.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message leaves the last message open and add_generation_prompt begins a new one; "
                "set add_generation_prompt to false",
                param="continue_final_message",
            )
        question = Question(
            self._source,
            self._special_tokens,
            [_as_template_sees(message) for message in messages],
            add_generation_prompt,
            None if now is None else now.isoformat(),
            continue_final_message,
            self._checked(template_kwargs),
            _as_text(tools),
        )
        try:
            data = msgspec.json.encode(question)
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"messages: text that is not valid Unicode: {error}", param="messages") from error
        answer = self._process.ask(data)
        match answer.kind:
            case Kind.TEXT:
                return answer.text
            case Kind.DIED:
                raise EngineFailure(f"the chat template could not be rendered: {answer.text}")
            case _:
                reason = answer.text
                raise InvalidRequest(f"the chat template cannot render these messages: {reason}", param="messages")

    def _checked(self, template_kwargs: bytes) -> str:
        """The JSON text. Raises InvalidRequest if it is no object, or has a name that is the template's own."""
        if not template_kwargs:
            return ""
        try:
            names = msgspec.json.decode(template_kwargs, type=dict[str, msgspec.Raw])
            text = template_kwargs.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(
                f"chat_template_kwargs must be a JSON object: {error}", param="chat_template_kwargs"
            ) from error
        for name in names:
            if name in RESERVED_NAMES or name in self._special_tokens:
                raise InvalidRequest(
                    f"chat_template_kwargs must not set {name[:80]!r}, which a template gets from the server",
                    param="chat_template_kwargs",
                )
        return text


def _as_text(tools: bytes) -> str:
    """Raises InvalidRequest for what is no JSON list of objects."""
    try:
        if tools:
            msgspec.json.decode(tools, type=list[dict[str, msgspec.Raw]])
        return tools.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"tools must be a JSON list of objects: {error}", param="tools") from error


def _as_template_sees(message: ChatMessage) -> SeenMessage:
    """The message as a dict with the keys that templates test for; no `name` is no key, no content is None."""
    seen: SeenMessage = {"role": message.role, "content": message.content}
    if message.name is not None:
        seen["name"] = message.name
    if message.reasoning_content is not None:
        seen["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        seen["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        seen["tool_call_id"] = message.tool_call_id
    return seen
