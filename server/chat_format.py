"""How deltas become the objects of the chat endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from ..actors.frontend_api import Delta
from ..mailbox.messages.requests import Finish, PromptDetails
from .answer_format import finishes_of, prompt_logprobs_of, prompt_token_ids_of
from .answer_objects import (
    Answer,
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    ChunkDelta,
    Message,
    UsageObject,
    usage_object,
)
from .answer_parser import AnswerParser
from .call_objects import chunk_delta, message
from .chunk_usage import ChunkUsage
from .generation_request import AnswerOptions
from .token_logprobs import chat_logprobs, named_by_id


class ChatFormat:
    """chat.completion and chat.completion.chunk. `created`: seconds since 1970."""

    def __init__(self, request_id: str, model: str, created: int, options: AnswerOptions) -> None:
        self._id, self._model, self._created = request_id, model, created
        self._options = options
        self._usage = ChunkUsage(options)
        self._parsers: dict[int, AnswerParser] = {}
        """By choice; none if text is all that an answer can hold."""

    def opening(self, delta: Delta, *, is_first: bool) -> Answer:
        """The role and the echo; in the answer's first chunk what was asked for about the prompt."""
        content = ChunkDelta(role="assistant", content=self._options.echo_text)
        prompt = delta.prompt if is_first else None
        return self._answer_chunk([ChatChunkChoice(content, index=delta.choice)], self._usage.before(delta), prompt)

    def chunk(self, delta: Delta) -> Answer | None:
        """What the delta's text holds; with the finish reason if it is the last. None while it may be anything."""
        finish = delta.finish
        parser = self._parser_of(delta)
        if parser is None:
            content = ChunkDelta(content=delta.text) if delta.text or finish is None else ChunkDelta()
        else:
            parsed = parser.feed(delta.text, is_last=finish is not None)
            if not parsed and finish is None and not self._tells_tokens(delta):
                return None
            content = chunk_delta(parsed, is_legacy=parser.is_legacy)
        choice = ChatChunkChoice(
            content,
            self._logprobs(delta),
            None if finish is None else _finish_reason(finish, parser),
            index=delta.choice,
            stop_reason=None if finish is None else finish.stop_reason,
            token_ids=delta.token_ids if self._options.returns_token_ids else UNSET,
        )
        return self._answer_chunk([choice], self._usage.after(delta), None)

    def usage_chunk(self, finishes: Sequence[Finish]) -> Answer:
        """After the last choice; how each ended, in order."""
        return self._answer_chunk([], usage_object(finishes, self._options.num_choices), None)

    def whole(self, deltas: Sequence[Delta]) -> Answer:
        """The answer that is not streamed; one delta a choice, each with `finish`."""
        prompt = deltas[0].prompt
        return Answer(
            self._id,
            "chat.completion",
            self._created,
            self._model,
            [self._whole_choice(delta) for delta in deltas],
            usage_object(finishes_of(deltas), self._options.num_choices),
            prompt_token_ids_of(prompt, self._options),
            prompt_logprobs_of(prompt, self._options),
        )

    def _whole_choice(self, delta: Delta) -> ChatChoice:
        assert delta.finish is not None
        parser = self._parser_of(delta)
        if parser is None:
            said = Message(self._options.echo_text + delta.text)
        else:
            parsed = parser.feed(delta.text, is_last=True)
            said = message(parsed, self._options.echo_text, is_legacy=parser.is_legacy)
        return ChatChoice(
            said,
            self._logprobs(delta),
            _finish_reason(delta.finish, parser),
            index=delta.choice,
            stop_reason=delta.finish.stop_reason,
            token_ids=delta.token_ids if self._options.returns_token_ids else UNSET,
        )

    def _parser_of(self, delta: Delta) -> AnswerParser | None:
        """The choice's own; its first delta says where the prompt has left the reasoning."""
        if self._options.parsing is None:
            return None
        parser = self._parsers.get(delta.choice)
        if parser is None:
            key = f"{self._id}-{delta.choice}"
            parser = AnswerParser(self._options.parsing, delta.reasoning or "closed", key)
            self._parsers[delta.choice] = parser
        return parser

    def _tells_tokens(self, delta: Delta) -> bool:
        """A chunk with the delta's tokens says something although it has no text."""
        options = self._options
        return bool(delta.logprobs) or options.returns_token_ids or options.has_running_usage

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        """None: the request asked for none."""
        tokens = delta.logprobs
        if tokens is None:
            return None
        return chat_logprobs(named_by_id(tokens, delta.token_ids) if self._options.names_tokens_by_id else tokens)

    def _answer_chunk(
        self, choices: list[ChatChunkChoice], usage: UsageObject | UnsetType | None, prompt: PromptDetails | None
    ) -> Answer:
        return Answer(
            self._id,
            "chat.completion.chunk",
            self._created,
            self._model,
            choices,
            usage,
            prompt_token_ids_of(prompt, self._options),
            prompt_logprobs_of(prompt, self._options),
        )


def _finish_reason(finish: Finish, parser: AnswerParser | None) -> str:
    """An answer with calls that came to its own end ended for them."""
    if finish.reason != "stop" or parser is None or not parser.num_calls:
        return finish.reason
    return "function_call" if parser.is_legacy else "tool_calls"
