"""What a call can be told, by keyword: the fields of the HTTP API under their own names, and how to make the call.

`chat(messages, **params: Unpack[ChatParams])`. A field that is left out, and None, is the server's default. Values are
judged by the server, which answers a wrong one with a 400 that names the field; an unknown name is a TypeError here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypedDict

from .timeouts import Timeouts

Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
"""Text, token ids, or a list of one of them: then the choices of prompt p are p * n to p * n + n - 1."""
Messages = Sequence[Mapping[str, object]]
Tools = Sequence[Mapping[str, object]]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class CallParams(TypedDict, total=False):
    """How a call is made; no field of the body."""

    timeouts: Timeouts | None
    """In place of the client's."""
    headers: Mapping[str, str] | None
    """Sent beside the client's."""
    request_id: str | None
    """Goes out as X-Request-Id, which the server repeats."""
    extra: Mapping[str, object] | None
    """Further fields of the body, as they are; they go before those of the same name."""


class StreamOptions(TypedDict, total=False):
    """`stream_options`; the client asks for the usage at a stream's end anyway."""

    include_usage: bool
    continuous_usage_stats: bool
    """Each delta has the usage so far."""


class RepetitionDetection(TypedDict, total=False):
    """Ends an answer whose last tokens are a pattern of so many tokens, repeated at least `min_count` times."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


class SamplingFields(TypedDict, total=False):
    """The fields that both endpoints have; docs/api.md says which the server serves."""

    model: str | None
    max_tokens: int | None
    n: int | None
    """Answers wanted; `ClientDelta.choice` tells them apart."""
    best_of: int | None
    seed: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    repetition_detection: RepetitionDetection | None
    prompt_logprobs: int | None
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None
    return_token_ids: bool | None
    """True if it is not said otherwise."""
    return_tokens_as_token_ids: bool | None
    """Tokens of log-probabilities are called `token_id:ID`."""
    truncate_prompt_tokens: int | None
    add_special_tokens: bool | None
    priority: int | None
    tenant: str | None
    """Whose request it is, for the fair policy; with API keys the key says it."""
    deadline_ms: float | None
    """So long after its arrival what has not ended does, with the `finish_reason` "timeout"."""
    cache_salt: str | None
    stream_options: StreamOptions | None
    response_format: Mapping[str, object] | None
    structured_outputs: Mapping[str, object] | None
    user: str | None


class ChatFields(SamplingFields, total=False):
    """The fields of /v1/chat/completions, but `messages`."""

    max_completion_tokens: int | None
    tools: Tools | None
    tool_choice: str | Mapping[str, object] | None
    parallel_tool_calls: bool | None
    reasoning_effort: ReasoningEffort | None
    include_reasoning: bool | None
    logprobs: bool | None
    top_logprobs: int | None
    echo: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: Mapping[str, object] | None
    documents: Sequence[Mapping[str, object]] | None


class CompletionFields(SamplingFields, total=False):
    """The fields of /v1/completions, but `prompt`."""

    logprobs: int | None
    echo: bool | None
    """The answer's text begins with the prompt."""
    suffix: str | None


class ChatParams(ChatFields, CallParams, total=False):
    """What `chat` takes beside the messages."""


class CompletionParams(CompletionFields, CallParams, total=False):
    """What `complete` takes beside the prompt."""


class PromptParams(CallParams, total=False):
    """What `tokenize` takes beside the prompt."""

    model: str | None
    tools: Tools | None
    tool_choice: str | Mapping[str, object] | None
    reasoning_effort: ReasoningEffort | None
    add_special_tokens: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: Mapping[str, object] | None
    documents: Sequence[Mapping[str, object]] | None
    truncate_prompt_tokens: int | None
    return_token_strs: bool | None


CALL_NAMES = CallParams.__optional_keys__


class Call:
    """One call's parameters, sorted: `fields` of the body, and the rest."""

    def __init__(self, params: Mapping[str, object], known: Iterable[str], limits: Timeouts) -> None:
        """Raises TypeError for a name that is not `known`, as for any other keyword of a function."""
        known = frozenset(known)
        for name in params:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, 1)
                hint = (
                    f"did you mean {nearest[0]!r}?"
                    if nearest
                    else "fields that the client does not know go in extra={...}"
                )
                raise TypeError(f"unexpected keyword argument {name!r}; {hint}")
        self.fields: dict[str, object] = {
            name: value for name, value in params.items() if name not in CALL_NAMES and value is not None
        }
        extra, headers, timeouts = params.get("extra"), params.get("headers"), params.get("timeouts")
        if isinstance(extra, Mapping):
            self.fields.update(extra)
        self.headers: dict[str, str] = dict(headers) if isinstance(headers, Mapping) else {}
        if params.get("request_id") is not None:
            self.headers["X-Request-Id"] = str(params["request_id"])
        self.timeouts = timeouts if isinstance(timeouts, Timeouts) else limits


def num_prompts(prompt: object) -> int:
    """Of a list of texts or of lists its length, else 1."""
    if hasattr(prompt, "tolist"):  # an array
        prompt = prompt.tolist()
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1
