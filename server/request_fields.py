"""The request fields of both endpoints that say what is asked, and how the answer is to be given.

How tokens are chosen is in `sampling_fields.py`. null is the same as absent everywhere.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest, UnknownModel
from .served_model import ServedModel
from .tenants import MAX_TENANT_CHARS

MAX_CHOICES = 128
"""Of one prompt."""
MAX_TOTAL_CHOICES = 1024
"""Prompts times `n`: each is a row of its own in the engine."""
MAX_PROMPT_LOGPROBS = 128
"""At each position of a prompt, over all its choices: each of them carries its own copy of the prompt."""
MAX_PRIORITY = 2**31 - 1

MAX_DEADLINE_MS = 2**31 - 1
"""Some 24 days."""

MaxTokens = Annotated[int, Meta(ge=0)]


class StreamOptions(msgspec.Struct, frozen=True, gc=False):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SharedFields(msgspec.Struct, frozen=True):
    """Fields with the same meaning at both endpoints."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    """Answers wanted of each prompt; default 1."""
    best_of: Annotated[int, Meta(ge=1)] | None = None
    """No more than are asked for are made: 1, or n."""
    max_tokens: MaxTokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    """Lower is more urgent; default 0."""
    deadline_ms: Annotated[float, Meta(gt=0, le=MAX_DEADLINE_MS)] | None = None
    """So long after its arrival what has not ended does, with the finish reason `timeout`."""
    tenant: Annotated[str, Meta(min_length=1, max_length=MAX_TENANT_CHARS)] | None = None
    """Whose request it is, for the fair policy; `tenants.py` says when a request may tell."""
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


SHARED_DECODER = msgspec.json.Decoder(SharedFields)
SHARED_NAMES = frozenset(SharedFields.__struct_fields__)


def check_shared(fields: SharedFields, model: ServedModel) -> None:
    """What the types do not say. Raises InvalidRequest, UnknownModel."""
    if fields.model is not None and fields.model != model.name:
        raise UnknownModel(
            f"the model {fields.model!r} does not exist; this server has {model.name!r}",
            param="model",
            code="model_not_found",
        )
    n = fields.n or 1
    if fields.best_of is not None and fields.best_of not in (1, n):
        raise InvalidRequest(
            f"best_of is {fields.best_of}, and n is {n}: no more answers are made than are returned; leave it out, "
            "or ask for all of them with n",
            param="best_of",
        )
    if fields.priority and not model.has_priorities:
        raise InvalidRequest(
            f"priority is {fields.priority}, and this server does not order by it (scheduler.policy in the topology); "
            "leave it out, or send 0",
            param="priority",
        )
    truncate = fields.truncate_prompt_tokens
    if truncate is not None and (truncate == 0 or truncate >= model.max_model_len):
        raise InvalidRequest(
            f"truncate_prompt_tokens is {truncate}; allowed are 1 to {model.max_model_len - 1} (max_model_len - 1), "
            "and -1 for as many as leave room for max_tokens",
            param="truncate_prompt_tokens",
        )
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")


def check_length(
    max_tokens: int | None,
    max_tokens_param: str,
    num_prompt_tokens: int | None,
    limit: int,
    prompt_param: str = "prompt",
) -> None:
    """The model's length, as far as it can be told before tokenization (`num_prompt_tokens` None: not known yet)."""
    if num_prompt_tokens is not None and num_prompt_tokens >= limit:
        raise InvalidRequest(
            f"{prompt_param} has {num_prompt_tokens:,} tokens, the limit is {limit - 1:,}: prompt and output together "
            f"must fit into max_model_len, {limit} tokens; shorten the prompt or raise max_model_len",
            param=prompt_param,
            code="context_length_exceeded",
        )
    if max_tokens is None:
        return
    known = num_prompt_tokens if num_prompt_tokens is not None else 1
    if known + max_tokens > limit:
        prompt = f"{known}" if num_prompt_tokens is not None else "at least 1"
        raise InvalidRequest(
            f"{prompt_param} ({prompt} tokens) and {max_tokens_param} ({max_tokens}) together exceed max_model_len, "
            f"{limit} tokens; shorten one of them",
            param=max_tokens_param,
            code="context_length_exceeded",
        )


def check_prompt_logprobs(n: int, num_top: int | None) -> None:
    """Raises InvalidRequest if the copies of a prompt's log-probabilities are too many."""
    if num_top is not None and n * (num_top + 1) > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"prompt_logprobs: each of the {n} choices carries {num_top + 1} log-probabilities of each token of its "
            f"prompt, {n * (num_top + 1)} together; the limit is {MAX_PROMPT_LOGPROBS}; ask for fewer, or with n=1",
            param="prompt_logprobs",
        )


def check_no_zero(max_tokens: int | None, param: str) -> None:
    """Raises InvalidRequest for no tokens at all."""
    if max_tokens == 0:
        raise InvalidRequest(f"{param}: Expected `int` >= 1; 0 is for completions with echo", param=param)
