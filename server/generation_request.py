"""A validated request of either endpoint: what the engine is asked, and how the answer is to be written."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..mailbox.messages.requests import AS_IT_IS, Prompt, PromptOptions
from ..mailbox.messages.sampling import SamplingParams
from .answer_parser import Parsing
from .answer_plan import NO_PLAN, AnswerPlan
from .request_fields import SharedFields


class AnswerOptions(msgspec.Struct, frozen=True):
    """What an answer holds beside the text that was generated."""

    num_choices: int = 1
    """Of each prompt: choice i of prompt p has the index p * num_choices + i."""
    includes_usage: bool = False
    """A stream ends with a usage chunk."""
    has_running_usage: bool = False
    """So has every chunk before it: the counts of its choice up to there."""
    returns_token_ids: bool = False
    names_tokens_by_id: bool = False
    """Log-probabilities call a token `token_id:N` and not by its text."""
    prompt_logprobs: int | None = None
    """As asked for by the field of that name: alternatives at each position."""
    echoes_prompt: bool = False
    """Completions: the text begins with the prompt."""
    echo_logprobs: int | None = None
    """Alternatives at each position of an echoed prompt; None: it has no log-probabilities."""
    echo_text: str = ""
    """Chat: what the answer's message begins with."""
    parsing: Parsing | None = None
    """Chat: an answer may hold reasoning or calls; None: its text is its content."""


class GenerationRequest(msgspec.Struct, frozen=True):
    """Everything about the request is decided: nothing below looks at the JSON again."""

    endpoint: Literal["chat", "completion"]
    prompts: list[Prompt]
    """At least one; each is a request of its own in the engine."""
    sampling: SamplingParams
    answer: AnswerOptions
    cache_salt: str = ""
    priority: int = 0
    tenant: str | None = None
    """As the body has it: whether that counts is decided by the key."""
    deadline_ms: float | None = None
    prompt_options: PromptOptions = AS_IT_IS
    plan: AnswerPlan = NO_PLAN
    returns_prompt: bool = False
    """The answer needs what the prompt became."""
    is_prompt_only: bool = False
    """The one token that the engine is asked for is not part of the answer."""
    streams: bool = False
    is_session: bool = False
    """A streaming session."""
    ignored_fields: list[str] = []

    @property
    def num_choices(self) -> int:
        """Of all prompts together."""
        return len(self.prompts) * self.answer.num_choices


def stream_usage(fields: SharedFields) -> tuple[bool, bool]:
    """(`includes_usage`, `has_running_usage`): the second needs the first."""
    options = fields.stream_options
    if options is None or not options.include_usage:
        return False, False
    return True, bool(options.continuous_usage_stats)
