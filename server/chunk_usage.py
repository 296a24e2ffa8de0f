"""`usage` in the chunks of a stream before the last one."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from ..actors.frontend_api import Delta
from .answer_objects import UsageObject
from .generation_request import AnswerOptions


class ChunkUsage:
    """Left out without `include_usage`, null with it, and with `continuous_usage_stats` the counts of the chunk's
    choice up to there. The tokens of the prompt are known from the first delta of a choice, which carries it."""

    def __init__(self, options: AnswerOptions) -> None:
        self._includes_usage = options.includes_usage
        self._is_running = options.has_running_usage
        self._num_prompt_tokens: dict[int, int] = {}
        self._num_tokens: dict[int, int] = {}

    def before(self, delta: Delta) -> UsageObject | UnsetType | None:
        """Of the chunk that opens a choice, before its first delta."""
        if not self._is_running:
            return None if self._includes_usage else UNSET
        return _counts(_num_prompt_tokens(delta), 0)

    def after(self, delta: Delta) -> UsageObject | UnsetType | None:
        """Of the chunk with this delta; called once for each."""
        if not self._is_running:
            return None if self._includes_usage else UNSET
        if delta.choice not in self._num_prompt_tokens:
            self._num_prompt_tokens[delta.choice] = _num_prompt_tokens(delta)
        num_tokens = self._num_tokens[delta.choice] = self._num_tokens.get(delta.choice, 0) + len(delta.token_ids)
        if delta.finish is not None:
            num_tokens = delta.finish.usage.completion_tokens
        return _counts(self._num_prompt_tokens[delta.choice], num_tokens)


def _num_prompt_tokens(delta: Delta) -> int:
    if delta.prompt is not None:
        return len(delta.prompt.token_ids)
    return 0 if delta.finish is None else delta.finish.usage.prompt_tokens


def _counts(num_prompt_tokens: int, num_tokens: int) -> UsageObject:
    return UsageObject(num_prompt_tokens, num_tokens, num_prompt_tokens + num_tokens)
