"""Prompts to ids, and the limits that only the ids show."""

from __future__ import annotations

from typing import assert_never

import msgspec

from ..errors import InvalidRequest
from ..mailbox.messages.requests import ChatPrompt, Generate, Prompt, TextPrompt, TokenPrompt
from ..mailbox.messages.sampling import SamplingParams
from ..text import Tokenizer


class PromptEncoder:
    """Holds nothing of a request; every method may be called from several threads."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def encode(self, generate: Generate) -> tuple[list[int], SamplingParams]:
        """The prompt's ids, and the parameters with a final `max_tokens`.

        Raises InvalidRequest for what cannot be served, and whatever template and vocabulary raise.
        """
        ids = self._ids(generate.prompt)
        param = "messages" if isinstance(generate.prompt, ChatPrompt) else "prompt"
        return ids, self._check(ids, generate.sampling, param)

    def _ids(self, prompt: Prompt) -> list[int]:
        match prompt:
            case TokenPrompt(token_ids):
                return token_ids
            case TextPrompt(text):
                return self._encode_text(text, "prompt", add_special_tokens=True)
            case ChatPrompt(messages):
                template = self._tokenizer.chat_template
                if template is None:
                    raise InvalidRequest(
                        "the model has no chat template; use /v1/completions, or name one with model.chat_template",
                        param="messages",
                    )
                return self._encode_text(template.render(messages), "messages", add_special_tokens=False)
            case _:
                assert_never(prompt)

    def _encode_text(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """A text that cannot fit is refused unread: others wait behind it for the encoder, megabytes take seconds."""
        fewest = self._tokenizer.fewest_tokens(text)
        if fewest >= self._max_model_len:
            raise InvalidRequest(
                f"prompt has {len(text):,} characters, which are at least {fewest:,} tokens, the limit is "
                f"{self._max_model_len - 1:,} (max_model_len {self._max_model_len:,}, less one to generate); "
                f"shorten it or raise max_model_len",
                code="context_length_exceeded",
                param=param,
            )
        return self._tokenizer.encode(text, add_special_tokens)

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
