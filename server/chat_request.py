"""POST /v1/chat/completions: from the body to a `GenerationRequest`."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest
from ..mailbox.messages.requests import ChatMessage, ChatPrompt, PromptOptions
from .answer_plan import answer_plan
from .chat_messages import chat_messages, unseen_fields
from .format_fields import FORMAT_DECODER, FORMAT_NAMES, asked_format
from .generation_request import AnswerOptions, GenerationRequest, stream_usage
from .request_body import NULL, RequestBody
from .request_fields import (
    SHARED_DECODER,
    SHARED_NAMES,
    MaxTokens,
    SharedFields,
    check_length,
    check_no_zero,
    check_prompt_logprobs,
    check_shared,
)
from .sampling_fields import SAMPLING_DECODER, SAMPLING_NAMES, TopLogprobs, sampling_params
from .served_model import ServedModel
from .template_fields import ReasoningEffort, echo_text, opens_answer, template_kwargs
from .tool_fields import TOOL_DECODER, TOOL_NAMES, ToolRequest, asked_tools
from .unsupported_fields import refuse_unsupported


class ChatFields(msgspec.Struct, frozen=True):
    """The fields that chat alone has."""

    messages: list[msgspec.Raw]
    max_completion_tokens: MaxTokens | None = None
    """Goes before max_tokens."""
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: msgspec.Raw = NULL
    documents: msgspec.Raw = NULL
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    """False: the answer has no `reasoning`; the model reasons all the same."""
    separate_reasoning: bool | None = None
    """False: it stays in the content, marks and all."""


_CHAT_DECODER = msgspec.json.Decoder(ChatFields)
_NAMES = SHARED_NAMES | SAMPLING_NAMES | FORMAT_NAMES | TOOL_NAMES | frozenset(ChatFields.__struct_fields__)


def parse_chat_request(body: RequestBody, model: ServedModel) -> GenerationRequest:
    """Raises InvalidRequest, NotSupportedYet, UnknownModel."""
    shared = body.decode(SHARED_DECODER)
    check_shared(shared, model)
    ignored = refuse_unsupported(body, supported=_NAMES)
    sampling_fields = body.decode(SAMPLING_DECODER)
    fields = body.decode(_CHAT_DECODER)
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    messages = chat_messages(fields.messages)
    ignored += unseen_fields(fields.messages)
    tools = asked_tools(body.decode(TOOL_DECODER))
    if tools is not None and not tools.is_required and not model.tells_tools:
        ignored.append(tools.param)
    plan = answer_plan(
        tools,
        asked_format(body.decode(FORMAT_DECODER)),
        model,
        num_calls_before=sum(len(message.tool_calls) for message in messages),
        shows_reasoning=fields.include_reasoning is not False,
        parses_reasoning=fields.separate_reasoning is not False,
    )
    check_prompt_logprobs(shared.n or 1, sampling_fields.prompt_logprobs)
    includes_usage, has_running_usage = stream_usage(shared)
    return GenerationRequest(
        endpoint="chat",
        prompts=[ChatPrompt(messages)],
        sampling=sampling_params(
            sampling_fields,
            model,
            max_tokens=_max_tokens(shared, fields, model),
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
            prompt_logprobs=sampling_fields.prompt_logprobs,
        ),
        answer=AnswerOptions(
            num_choices=shared.n or 1,
            includes_usage=includes_usage,
            has_running_usage=has_running_usage,
            returns_token_ids=bool(shared.return_token_ids),
            names_tokens_by_id=bool(shared.return_tokens_as_token_ids),
            prompt_logprobs=sampling_fields.prompt_logprobs,
            echo_text=echo_text(messages) if fields.echo else "",
            parsing=plan.parsing,
        ),
        cache_salt=shared.cache_salt or "",
        priority=shared.priority or 0,
        tenant=shared.tenant,
        deadline_ms=shared.deadline_ms,
        prompt_options=_prompt_options(shared, fields, messages, tools),
        plan=plan,
        returns_prompt=has_running_usage or bool(shared.return_token_ids),
        streams=bool(shared.stream),
        ignored_fields=ignored,
    )


def _max_tokens(shared: SharedFields, fields: ChatFields, model: ServedModel) -> int | None:
    """Of whichever field counts. Raises InvalidRequest."""
    if fields.max_completion_tokens is None:
        param, max_tokens = "max_tokens", shared.max_tokens
    else:
        param, max_tokens = "max_completion_tokens", fields.max_completion_tokens
    check_no_zero(max_tokens, param)
    check_length(max_tokens, param, None, model.max_model_len)
    return max_tokens


def _prompt_options(
    shared: SharedFields, fields: ChatFields, messages: tuple[ChatMessage, ...], tools: ToolRequest | None
) -> PromptOptions:
    """Raises InvalidRequest."""
    return PromptOptions(
        add_special_tokens=shared.add_special_tokens,
        truncate_prompt_tokens=shared.truncate_prompt_tokens,
        add_generation_prompt=opens_answer(fields.add_generation_prompt, fields.continue_final_message, messages),
        continue_final_message=bool(fields.continue_final_message),
        template_kwargs=template_kwargs(fields.chat_template_kwargs, fields.documents, fields.reasoning_effort),
        tools=b"" if tools is None else tools.for_template,
    )
