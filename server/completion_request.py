"""POST /v1/completions: from the body to a `GenerationRequest`."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest, NotSupportedYet
from ..mailbox.messages.requests import PromptOptions, TextPrompt, TokenPrompt
from .answer_plan import NO_PLAN, AnswerPlan
from .format_fields import FORMAT_DECODER, FORMAT_NAMES, asked_format
from .generation_request import AnswerOptions, GenerationRequest, stream_usage
from .prompt_fields import prompts_of
from .request_body import RequestBody
from .request_fields import (
    MAX_TOTAL_CHOICES,
    SHARED_DECODER,
    SHARED_NAMES,
    SharedFields,
    check_length,
    check_no_zero,
    check_prompt_logprobs,
    check_shared,
)
from .sampling_fields import SAMPLING_DECODER, SAMPLING_NAMES, TopLogprobs, sampling_params
from .served_model import ServedModel
from .session_request import check_session
from .unsupported_fields import refuse_unsupported


class CompletionFields(msgspec.Struct, frozen=True):
    """The fields that completions alone has."""

    prompt: msgspec.Raw
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    session: bool | None = None


_FIELDS_DECODER = msgspec.json.Decoder(CompletionFields)
_NAMES = SHARED_NAMES | SAMPLING_NAMES | FORMAT_NAMES | frozenset(CompletionFields.__struct_fields__)


def parse_completion_request(body: RequestBody, model: ServedModel) -> GenerationRequest:
    """Raises InvalidRequest, NotSupportedYet, UnknownModel."""
    shared = body.decode(SHARED_DECODER)
    check_shared(shared, model)
    ignored = refuse_unsupported(body, supported=_NAMES)
    sampling_fields = body.decode(SAMPLING_DECODER)
    fields = body.decode(_FIELDS_DECODER)
    echoes = bool(fields.echo)
    if not echoes:
        check_no_zero(shared.max_tokens, "max_tokens")
    prompts = prompts_of(bytes(fields.prompt), model.vocab_size)
    _check_prompts(prompts, shared, model)
    asked = asked_format(body.decode(FORMAT_DECODER))
    is_session = bool(fields.session)
    if is_session:
        check_session(
            shared,
            len(prompts),
            echoes=echoes,
            asks_prompt_logprobs=sampling_fields.prompt_logprobs is not None,
            takes_sessions=model.takes_sessions,
        )
        if asked is not None:
            raise NotSupportedYet(f"{asked.param} in a streaming session", param=asked.param)
    is_prompt_only = shared.max_tokens == 0
    echo_logprobs = fields.logprobs if echoes else None
    includes_usage, has_running_usage = stream_usage(shared)
    asked_prompt_logprobs = [k for k in (sampling_fields.prompt_logprobs, echo_logprobs) if k is not None]
    prompt_logprobs = max(asked_prompt_logprobs, default=None)
    check_prompt_logprobs(shared.n or 1, prompt_logprobs)
    sampling = sampling_params(
        sampling_fields,
        model,
        max_tokens=shared.max_tokens,
        logprobs=fields.logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    if is_prompt_only:
        sampling = msgspec.structs.replace(sampling, max_tokens=1)
    return GenerationRequest(
        endpoint="completion",
        prompts=[*prompts],
        sampling=sampling,
        answer=AnswerOptions(
            num_choices=shared.n or 1,
            includes_usage=includes_usage,
            has_running_usage=has_running_usage,
            returns_token_ids=bool(shared.return_token_ids),
            names_tokens_by_id=bool(shared.return_tokens_as_token_ids),
            prompt_logprobs=sampling_fields.prompt_logprobs,
            echoes_prompt=echoes,
            echo_logprobs=echo_logprobs,
        ),
        cache_salt=shared.cache_salt or "",
        priority=shared.priority or 0,
        tenant=shared.tenant,
        deadline_ms=shared.deadline_ms,
        prompt_options=PromptOptions(
            add_special_tokens=shared.add_special_tokens, truncate_prompt_tokens=shared.truncate_prompt_tokens
        ),
        plan=NO_PLAN if asked is None or is_prompt_only else AnswerPlan(asked.format, asked.param),
        returns_prompt=echoes or has_running_usage or bool(shared.return_token_ids),
        is_prompt_only=is_prompt_only,
        streams=bool(shared.stream),
        is_session=is_session,
        ignored_fields=ignored,
    )


def _check_prompts(prompts: list[TextPrompt | TokenPrompt], shared: SharedFields, model: ServedModel) -> None:
    """Their number and their lengths, as far as they are known."""
    n = shared.n or 1
    total = len(prompts) * n
    times = f" with n={n}" if n > 1 else ""
    choices = f"prompt: {len(prompts):,} prompts{times} are {total:,} choices"
    if total > MAX_TOTAL_CHOICES:
        raise InvalidRequest(f"{choices}; the limit of a request is {MAX_TOTAL_CHOICES:,}", param="prompt")
    if len(prompts) > 1 and total > model.max_live_requests:  # of one prompt, the frontend says so of `n`
        raise InvalidRequest(
            f"{choices}, and this engine holds {model.max_live_requests:,} at once (max_queued_requests + "
            "max_num_seqs); send fewer at a time",
            param="prompt",
        )
    truncate = shared.truncate_prompt_tokens
    for index, prompt in enumerate(prompts):
        num_tokens = len(prompt.token_ids) if isinstance(prompt, TokenPrompt) else None
        if truncate is not None:
            num_tokens = None if num_tokens is None or truncate == -1 else min(num_tokens, truncate)
        param = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
        check_length(shared.max_tokens, "max_tokens", num_tokens, model.max_model_len, param)
