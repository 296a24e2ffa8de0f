"""The request fields that chat and completions share, and how they become `SamplingParams`."""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest, NotSupportedYet, UnknownModel
from ..mailbox.messages.sampling import SamplingParams
from ..topology.boards import MAX_LOGPROBS

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256
MAX_CHOICES = 128

StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
"""The slots of the result board are made for so many."""
MaxTokens = Annotated[int, Meta(ge=1)]


class StreamOptions(msgspec.Struct, frozen=True, gc=False):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SharedFields(msgspec.Struct, frozen=True):
    """Fields with the same meaning at both endpoints. null is the same as absent everywhere."""

    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    """Default 1; 0 is greedy."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """0 and -1 keep all tokens."""
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    """Answers wanted; default 1."""
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    ignore_eos: bool | None = None
    max_tokens: MaxTokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    return_token_ids: bool | None = None


SHARED_DECODER = msgspec.json.Decoder(SharedFields)
SHARED_NAMES = frozenset(SharedFields.__struct_fields__)


def check_model(fields: SharedFields, served_name: str) -> None:
    """Raises UnknownModel; a request without a model means the one that is served."""
    if fields.model is not None and fields.model != served_name:
        raise UnknownModel(
            f"the model {fields.model!r} does not exist; this server has {served_name!r}",
            param="model",
            code="model_not_found",
        )


def includes_usage(fields: SharedFields) -> bool:
    """Whether the stream ends with a usage chunk. Raises InvalidRequest for stream options without a stream."""
    options = fields.stream_options
    if options is None:
        return False
    if not fields.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    if options.continuous_usage_stats:
        raise NotSupportedYet("continuous_usage_stats", param="stream_options.continuous_usage_stats")
    return bool(options.include_usage)


def sampling_params(fields: SharedFields, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
    """Final values for the engine; a request without a seed gets 64 random bits."""
    seed = secrets.randbits(64) if fields.seed is None else fields.seed % 2**64
    stop = () if fields.stop is None else (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    return SamplingParams(
        seed=seed,
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_k=max(0, fields.top_k or 0),
        top_p=1.0 if fields.top_p is None else fields.top_p,
        min_p=fields.min_p or 0.0,
        max_tokens=max_tokens,
        stop=stop,
        ignore_eos=bool(fields.ignore_eos),
        logprobs=logprobs,
    )


def check_length(max_tokens: int | None, max_tokens_param: str, num_prompt_tokens: int | None, limit: int) -> None:
    """The model's length, as far as it can be told before tokenization (`num_prompt_tokens` None: a text prompt)."""
    if num_prompt_tokens is not None and num_prompt_tokens >= limit:
        raise InvalidRequest(
            f"prompt has {num_prompt_tokens:,} tokens, the limit is {limit - 1:,}: prompt and output together must fit "
            f"into max_model_len, {limit} tokens; shorten the prompt or raise max_model_len",
            param="prompt",
            code="context_length_exceeded",
        )
    if max_tokens is None:
        return
    known = num_prompt_tokens if num_prompt_tokens is not None else 1
    if known + max_tokens > limit:
        prompt = f"{known}" if num_prompt_tokens is not None else "at least 1"
        raise InvalidRequest(
            f"prompt ({prompt} tokens) and {max_tokens_param} ({max_tokens}) together exceed max_model_len, "
            f"{limit} tokens; shorten one of them",
            param=max_tokens_param,
            code="context_length_exceeded",
        )
