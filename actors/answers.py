"""Questions, as a tokenizer answers them: what ids a prompt has, what text ids have; what the scheduler alone knows it
passes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import assert_never

from ..errors import EngineFailure, InvalidRequest, RequestError
from ..mailbox.messages.requests import (
    Answer,
    Detokenize,
    Detokenized,
    Explanation,
    Question,
    Tokenize,
    Tokenized,
    TokenizerToFrontend,
    TokenPrompt,
)
from ..text import Tokenizer
from .prompt_encoder import MAX_CHARS, PromptEncoder
from .refusals import refused
from .sender import Sender

# The limits keep an answer well below the largest message of a mailbox, whatever it is asked.
MAX_IDS = 1 << 20
"""Ids in a question."""
MAX_BYTES = 1 << 24
"""Of the text of ids in a question: with those of white space a few ids can name a lot of it."""


OwnQuestion = Tokenize | Detokenize
"""The tokenizer itself has the answer."""


class Answers:
    """The questions that wait for the encode thread, are in it, or are with the scheduler. Each is answered once, or
    withdrawn."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder: PromptEncoder,
        frontends: Mapping[str, Sender[TokenizerToFrontend]],
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._frontends = frontends
        self._open: dict[str, Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, question: Question) -> None:
        """It is open from now on; an earlier attempt is answered no more."""
        self._open[question.request_id] = question

    def is_wanted(self, question: Question) -> bool:
        """Also asked from threads."""
        return self._open.get(question.request_id) is question

    def withdraw(self, request_id: str, attempt: int) -> bool:
        """Whether a question of that name, up to that attempt, was open; it is answered no more."""
        question = self._open.get(request_id)
        if question is None or question.attempt > attempt:
            return False
        del self._open[request_id]
        return True

    def withdraw_of(self, frontend: str) -> None:
        """The frontend died."""
        self._open = {name: question for name, question in self._open.items() if question.frontend != frontend}

    async def answer(self, question: OwnQuestion, find: Callable[[OwnQuestion], Awaitable[Answer | None]]) -> None:
        """Send what `find` gives, or why there is nothing, if it is still wanted then. It calls `find` in a thread."""
        try:
            answer = await find(question)
        except RequestError as error:
            self.refuse(question, error)
        except Exception as error:  # it belongs to this question alone: the template, or text that no tokenizer takes
            reason = f"{type(error).__name__}: {error}"
            self.refuse(question, EngineFailure(f"the question could not be answered: {reason}"))
        else:
            if answer is not None:
                self._send(question, answer)

    def refuse(self, question: Question, error: RequestError) -> None:
        """Send why there is no answer, if one is still wanted."""
        self._send(question, refused(question.request_id, question.attempt, error))

    def pass_on(self, explanation: Explanation) -> None:
        """What the scheduler answers; of a question that is not open, or of another attempt of it, it is dropped."""
        question = self._open.get(explanation.request_id)
        if question is not None and question.attempt == explanation.attempt:
            self._send(question, explanation)

    def _send(self, question: Question, answer: TokenizerToFrontend) -> None:
        if self.is_wanted(question):
            del self._open[question.request_id]
            self._frontends[question.frontend].post(answer)

    def find(self, question: OwnQuestion) -> Answer | None:
        """In a thread. None, and the question is not looked at, if it was withdrawn.

        Raises InvalidRequest, and whatever template and vocabulary raise.
        """
        if not self.is_wanted(question):
            return None
        match question:
            case Tokenize():
                return self._tokenize(question)
            case Detokenize():
                self._check_spelt(question.token_ids, "tokens")
                text = self._tokenizer.decode(question.token_ids, skip_special_tokens=False)
                return Detokenized(question.request_id, question.attempt, text)
            case _:
                assert_never(question)

    def _tokenize(self, question: Tokenize) -> Tokenized:
        prompt, options = question.prompt, question.options
        if isinstance(prompt, TokenPrompt):
            ids = prompt.token_ids
            self._check_spelt(ids, "prompt")
        else:
            said = self._encoder.text_of(prompt, options)
            if len(said.text) > MAX_CHARS:
                raise InvalidRequest(
                    f"{said.param} has {len(said.text):,} characters, the limit is {MAX_CHARS:,}; send it in parts",
                    param=said.param,
                )
            ids = self._tokenizer.encode(said.text, said.add_special_tokens)
        ids = self._encoder.truncate(ids, options.truncate_prompt_tokens, None)
        strings = [self._tokenizer.token_string(token_id) for token_id in ids] if question.returns_strings else None
        return Tokenized(question.request_id, question.attempt, ids, strings)

    def _check_spelt(self, ids: Sequence[int], param: str) -> None:
        if len(ids) > MAX_IDS:
            raise InvalidRequest(
                f"{param} has {len(ids):,} ids, the limit is {MAX_IDS:,}; send them in parts", param=param
            )
        num_bytes = sum(len(self._tokenizer.token_bytes(token_id)) for token_id in ids)
        if num_bytes > MAX_BYTES:
            raise InvalidRequest(
                f"{param} has ids with {num_bytes:,} bytes of text, the limit is {MAX_BYTES:,}; send them in parts",
                param=param,
            )
