"""The request fields that say how tokens are chosen and when the answer ends, and how they become `SamplingParams`."""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from ..errors import InvalidRequest
from ..mailbox.messages.sampling import RepetitionDetection, SamplingParams
from ..topology.boards import MAX_LOGPROBS, MAX_SAMPLING_ENTRIES
from .request_body import NULL
from .served_model import ServedModel
from .token_lists import check_num_entries, distinct_ids, logit_bias_of

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256
MAX_BAD_WORD_CHARS = 256
MAX_PATTERN_SIZE = 1024
"""Tokens of a pattern that `repetition_detection` may look for, and repetitions that it may wait for."""
MAX_REPETITION_PENALTY = 100.0
GREEDY_TEMPERATURE = 1e-3
"""Up to here a temperature is taken for 0: it would only choose between tokens that are likely within a percent, by
differences that are float32's noise."""

StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
"""The slots of the result board are made for so many."""
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenIds = Annotated[list[int], Meta(max_length=MAX_SAMPLING_ENTRIES)]


class RepetitionFields(msgspec.Struct, frozen=True, gc=False):
    """`repetition_detection`."""

    max_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN_SIZE)]
    """0: no detection."""
    min_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN_SIZE)] | None = None
    """Default 1; 0 is the same."""
    min_count: Annotated[int, Meta(ge=2, le=MAX_PATTERN_SIZE)] | None = None
    """Default 2."""


class SamplingFields(msgspec.Struct, frozen=True):
    """Fields with the same meaning at both endpoints."""

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    """Default 1; 0 is greedy."""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """0 is greedy."""
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """0 and -1 keep all tokens."""
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=1 / MAX_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = None
    logit_bias: Raw = NULL
    allowed_token_ids: TokenIds | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_SAMPLING_ENTRIES)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    repetition_detection: RepetitionFields | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: TopLogprobs | None = None
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None = None


SAMPLING_DECODER = msgspec.json.Decoder(SamplingFields)
SAMPLING_NAMES = frozenset(SamplingFields.__struct_fields__)


def sampling_params(
    fields: SamplingFields,
    model: ServedModel,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Final values for the engine; a request without a seed gets 64 random bits. Raises InvalidRequest."""
    seed = secrets.randbits(64) if fields.seed is None else fields.seed % 2**64
    stop = () if fields.stop is None else (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    temperature = 1.0 if fields.temperature is None else fields.temperature
    is_greedy = fields.top_p == 0 or temperature <= GREEDY_TEMPERATURE
    if fields.allowed_token_ids == []:
        raise InvalidRequest("allowed_token_ids is empty: no token could be chosen", param="allowed_token_ids")
    sampling = SamplingParams(
        seed=seed,
        temperature=0.0 if is_greedy else temperature,
        top_k=max(0, fields.top_k or 0),
        top_p=fields.top_p or 1.0,
        min_p=fields.min_p or 0.0,
        max_tokens=max_tokens,
        stop=stop,
        ignore_eos=bool(fields.ignore_eos),
        logprobs=logprobs,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        logit_bias=logit_bias_of(fields.logit_bias, model.vocab_size),
        allowed_token_ids=distinct_ids(fields.allowed_token_ids or [], "allowed_token_ids", model.vocab_size),
        bad_words=tuple(dict.fromkeys(fields.bad_words or ())),
        min_tokens=_min_tokens(fields.min_tokens or 0, max_tokens, model.max_model_len),
        stop_token_ids=distinct_ids(fields.stop_token_ids or [], "stop_token_ids", model.vocab_size),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        prompt_logprobs=prompt_logprobs,
        processed_logprobs=_processes_logprobs(fields, model),
        repetition_detection=_repetition_detection(fields.repetition_detection),
    )
    check_num_entries(sampling)
    return sampling


def _min_tokens(min_tokens: int, max_tokens: int | None, max_model_len: int) -> int:
    limit = max_model_len - 1 if max_tokens is None else max_tokens
    if min_tokens > limit:
        name = "the room beside a prompt (max_model_len - 1)" if max_tokens is None else "max_tokens"
        raise InvalidRequest(f"min_tokens is {min_tokens}, more than {name}, {limit}", param="min_tokens")
    return min_tokens


def _processes_logprobs(fields: SamplingFields, model: ServedModel) -> bool:
    if fields.logprobs_mode is None:
        return model.processes_logprobs
    return fields.logprobs_mode == "processed_logprobs"


def _repetition_detection(fields: RepetitionFields | None) -> RepetitionDetection | None:
    if fields is None or fields.max_pattern_size == 0:
        return None
    min_pattern_size = fields.min_pattern_size or 1
    if min_pattern_size > fields.max_pattern_size:
        raise InvalidRequest(
            f"repetition_detection: min_pattern_size is {min_pattern_size}, more than max_pattern_size, "
            f"{fields.max_pattern_size}",
            param="repetition_detection.min_pattern_size",
        )
    return RepetitionDetection(fields.max_pattern_size, min_pattern_size, fields.min_count or 2)
