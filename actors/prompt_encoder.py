"""Prompts to ids, and the limits that only the ids show."""

from __future__ import annotations

from typing import assert_never

import msgspec

from ..errors import InvalidRequest
from ..mailbox.messages.grammar import ReasoningGate
from ..mailbox.messages.requests import (
    ChatMessage,
    ChatPrompt,
    Generate,
    Prompt,
    PromptOptions,
    ReasoningState,
    Resume,
    TextPrompt,
    TokenPrompt,
)
from ..mailbox.messages.sampling import SamplingParams
from ..text import Tokenizer
from ..topology.boards import MAX_SAMPLING_ENTRIES
from .bad_words import bad_token_ids
from .reasoning_start import reasoning_gate, state_of
from .session_turn import context_of

MAX_CHARS = 1 << 21
"""Of a text that is read although it may be too long for the model: the encoder is at it for a second or two, and
others wait."""
MAX_PROMPT_LOGPROBS = 1 << 19
"""Log-probabilities of prompt tokens, alternatives among them, for all answers to a request together."""


WITHIN_TEXT = PromptOptions(add_special_tokens=False)


class PromptText(msgspec.Struct, frozen=True, gc=False):
    """A prompt before it is encoded."""

    text: str
    param: str
    """The field that it came from."""
    add_special_tokens: bool


class EncodedPrompt(msgspec.Struct, frozen=True, gc=False):
    """What a request is admitted with."""

    token_ids: list[int]
    sampling: SamplingParams
    """With a final `max_tokens`, and `bad_token_ids` in the place of `bad_words`."""
    text: str | None = None
    """For `PromptDetails`, if they are wanted."""
    reasoning_state: ReasoningState | None = None
    """With `Generate.reasoning`: where the prompt has left it."""
    reasoning_gate: ReasoningGate | None = None
    """Where a grammar waits; None: nowhere."""


class PromptEncoder:
    """Holds nothing of a request; every method may be called from several threads."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def encode(self, generate: Generate) -> EncodedPrompt:
        """Raises InvalidRequest for what cannot be served, and whatever template and vocabulary raise."""
        prompt, sampling = generate.prompt, generate.sampling
        if isinstance(prompt, TokenPrompt):
            whole, whole_text = prompt.token_ids, ""
        else:
            said = self.text_of(prompt, generate.options)
            whole, whole_text = self._ids_of(said, generate.options), said.text
        ids = self.truncate(whole, generate.options.truncate_prompt_tokens, sampling.max_tokens)
        param = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
        sampling = self._without_bad_words(self._check(ids, sampling, param))
        self._check_prompt_logprobs(len(ids), generate)
        text = None
        if generate.returns_prompt or sampling.prompt_logprobs is not None:
            if isinstance(prompt, TextPrompt) and len(ids) == len(whole):
                text = prompt.text
            else:
                text = self._tokenizer.decode(ids, skip_special_tokens=False)
        state, gate = None, None
        if generate.reasoning is not None:
            state = state_of(generate.reasoning, whole_text, _continued(generate))
            gate = reasoning_gate(generate.reasoning, state)
        return EncodedPrompt(ids, sampling, text, state, gate)

    def encode_input(self, prompt: TextPrompt | TokenPrompt) -> list[int]:
        """The ids of a session's input: it stands within a text, so nothing is put around it. Raises as `encode`."""
        return self._ids(prompt, WITHIN_TEXT)

    def encode_turn(self, resume: Resume, prompt: EncodedPrompt) -> EncodedPrompt:
        """A session's present turn, behind its first `prompt`. Raises as `encode`."""
        ids = context_of(resume, prompt.token_ids, self.encode_input, self._max_model_len)
        return EncodedPrompt(ids, prompt.sampling)

    def text_of(self, prompt: TextPrompt | ChatPrompt, options: PromptOptions) -> PromptText:
        """Raises InvalidRequest for messages that cannot be rendered."""
        match prompt:
            case TextPrompt(text):
                return PromptText(text, "prompt", options.add_special_tokens is not False)
            case ChatPrompt(messages):
                template = self._tokenizer.chat_template
                if template is None:
                    raise InvalidRequest(
                        "the model has no chat template; use /v1/completions, or name one with model.chat_template",
                        param="messages",
                    )
                text = template.render(
                    messages,
                    options.add_generation_prompt,
                    continue_final_message=options.continue_final_message,
                    template_kwargs=options.template_kwargs,
                    tools=options.tools,
                )
                return PromptText(text, "messages", options.add_special_tokens is True)
            case _:
                assert_never(prompt)

    def truncate(self, ids: list[int], num_kept: int | None, max_tokens: int | None) -> list[int]:
        """The last `num_kept` ids; -1: as many as leave room for `max_tokens`, or for one token without it."""
        if num_kept is None:
            return ids
        if num_kept < -1:
            raise InvalidRequest(
                f"truncate_prompt_tokens is {num_kept:,}; give a number of tokens, or -1 for what fits",
                param="truncate_prompt_tokens",
            )
        if num_kept == -1:
            num_kept = self._max_model_len - (1 if max_tokens is None else max_tokens)
        return ids[max(0, len(ids) - max(0, num_kept)) :]

    def _ids(self, prompt: Prompt, options: PromptOptions) -> list[int]:
        """All ids of the prompt, before it is truncated."""
        if isinstance(prompt, TokenPrompt):
            return prompt.token_ids
        return self._ids_of(self.text_of(prompt, options), options)

    def _ids_of(self, said: PromptText, options: PromptOptions) -> list[int]:
        if options.truncate_prompt_tokens is None:
            self._check_can_fit(said)
        elif len(said.text) > MAX_CHARS:
            self._check_may_be_read(said)
        return self._tokenizer.encode(said.text, said.add_special_tokens)

    def _check_can_fit(self, said: PromptText) -> None:
        """A text that cannot fit is refused unread: others wait behind it for the encoder, megabytes take seconds."""
        fewest = self._tokenizer.fewest_tokens(said.text)
        if fewest >= self._max_model_len:
            raise InvalidRequest(
                f"prompt has {len(said.text):,} characters, which are at least {fewest:,} tokens, the limit is "
                f"{self._max_model_len - 1:,} (max_model_len {self._max_model_len:,}, less one to generate); "
                f"shorten it or raise max_model_len",
                code="context_length_exceeded",
                param=said.param,
            )

    def _check_may_be_read(self, said: PromptText) -> None:
        """The last tokens of a text may depend on all that is before them, so it is read as a whole to be truncated.
        One of more than `MAX_CHARS` is read only if it may fit without that."""
        if not 0 < self._tokenizer.fewest_tokens(said.text) < self._max_model_len:
            raise InvalidRequest(
                f"prompt has {len(said.text):,} characters, the limit is {MAX_CHARS:,} for one that is truncated "
                f"(truncate_prompt_tokens); leave its beginning away",
                code="context_length_exceeded",
                param=said.param,
            )

    def _without_bad_words(self, sampling: SamplingParams) -> SamplingParams:
        """`bad_words` become `bad_token_ids`; checks how many ids all lists have."""
        if sampling.bad_words:
            ids = dict.fromkeys((*sampling.bad_token_ids, *bad_token_ids(self._tokenizer, sampling.bad_words)))
            sampling = msgspec.structs.replace(sampling, bad_words=(), bad_token_ids=tuple(ids))
        if sampling.num_entries > MAX_SAMPLING_ENTRIES:
            raise InvalidRequest(
                f"logit_bias, allowed_token_ids, stop_token_ids and bad_words hold {sampling.num_entries:,} token ids "
                f"together, the limit is {MAX_SAMPLING_ENTRIES:,}",
                param="bad_words" if sampling.bad_token_ids else "logit_bias",
            )
        return sampling

    def _check(self, ids: list[int], sampling: SamplingParams, prompt_param: str) -> SamplingParams:
        """The prompt's length against the model's; `max_tokens` gets its final value, which holds for each choice."""
        limit = self._max_model_len
        if not ids:
            raise InvalidRequest("the prompt has no tokens; give at least one", param=prompt_param)
        room = limit - len(ids)
        if room < 1:
            raise InvalidRequest(
                f"prompt has {len(ids):,} tokens, the limit is {limit - 1:,} "
                f"(max_model_len {limit:,}, less one to generate); shorten it or raise max_model_len",
                code="context_length_exceeded",
                param=prompt_param,
            )
        if sampling.max_tokens is None:
            return msgspec.structs.replace(sampling, max_tokens=room)
        if sampling.max_tokens > room:
            raise InvalidRequest(
                f"prompt has {len(ids):,} tokens and max_tokens is {sampling.max_tokens:,}, together "
                f"{len(ids) + sampling.max_tokens:,}; the limit is {limit:,} (max_model_len)",
                code="context_length_exceeded",
                param="max_tokens",
            )
        return sampling

    def _check_prompt_logprobs(self, num_tokens: int, generate: Generate) -> None:
        k = generate.sampling.prompt_logprobs
        num_entries = 0 if k is None else generate.num_choices * num_tokens * (1 + k)
        if num_entries > MAX_PROMPT_LOGPROBS:
            raise InvalidRequest(
                f"prompt_logprobs {k} for {num_tokens:,} prompt tokens and {generate.num_choices} choices are "
                f"{num_entries:,} log-probabilities, the limit is {MAX_PROMPT_LOGPROBS:,}; ask for fewer",
                param="prompt_logprobs",
            )


def _continued(generate: Generate) -> ChatMessage | None:
    """The message that the answer goes on in."""
    if isinstance(generate.prompt, ChatPrompt) and generate.options.continue_final_message:
        return generate.prompt.messages[-1]
    return None
