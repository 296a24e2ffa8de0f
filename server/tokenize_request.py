"""POST /tokenize and /detokenize: from the body to what the frontend is asked."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..errors import InvalidRequest
from ..mailbox.messages.requests import ChatPrompt, Prompt, PromptOptions, TextPrompt
from .chat_messages import chat_messages, unseen_fields
from .request_body import NULL, RequestBody
from .request_fields import SharedFields, check_shared
from .served_model import ServedModel
from .template_fields import ReasoningEffort, opens_answer, template_kwargs
from .token_lists import check_ids
from .tool_fields import TOOL_DECODER, ToolFields, asked_tools
from .unsupported_fields import NO_EFFECT, refuse_unsupported

PROMPT_FIELDS = frozenset({"chat_template", "mm_processor_kwargs"})
"""Fields of generating requests that would change the tokens of a prompt."""


class TokenizeFields(msgspec.Struct, frozen=True):
    """The fields of /tokenize: `prompt` or `messages`. null is the same as absent."""

    model: str | None = None
    prompt: str | list[msgspec.Raw] | None = None
    """A list is refused, by a sentence that tells what to do."""
    messages: list[msgspec.Raw] | None = None
    add_special_tokens: bool | None = None
    """Default: for a prompt true, for messages false (the chat template writes them)."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    """Messages: default true, false with `continue_final_message`."""
    continue_final_message: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    chat_template_kwargs: msgspec.Raw = NULL
    documents: msgspec.Raw = NULL
    reasoning_effort: ReasoningEffort | None = None


class DetokenizeFields(msgspec.Struct, frozen=True):
    """The fields of /detokenize."""

    tokens: list[int]
    model: str | None = None


class TokenizeRequest(msgspec.Struct, frozen=True):
    """A validated request of /tokenize."""

    prompt: Prompt
    options: PromptOptions
    returns_strings: bool
    ignored_fields: list[str]


class DetokenizeRequest(msgspec.Struct, frozen=True):
    """A validated request of /detokenize."""

    token_ids: list[int]
    ignored_fields: list[str]


_TOKENIZE_DECODER = msgspec.json.Decoder(TokenizeFields)
_DETOKENIZE_DECODER = msgspec.json.Decoder(DetokenizeFields)


def parse_tokenize_request(body: RequestBody, model: ServedModel) -> TokenizeRequest:
    """Raises InvalidRequest, NotSupportedYet, UnknownModel."""
    fields = body.decode(_TOKENIZE_DECODER)
    check_shared(SharedFields(model=fields.model, truncate_prompt_tokens=fields.truncate_prompt_tokens), model)
    ignored = _ignored(body, TokenizeFields.__struct_fields__ + ToolFields.__struct_fields__)
    if (fields.prompt is None) == (fields.messages is None):
        which = "one of them is needed" if fields.prompt is None else "not both"
        raise InvalidRequest(f"prompt or messages: {which}", param="prompt" if fields.prompt is None else "messages")
    prompt: Prompt
    if fields.messages is None:
        prompt = _text_prompt(fields.prompt)
        options = PromptOptions(fields.add_special_tokens, fields.truncate_prompt_tokens)
    else:
        prompt = ChatPrompt(chat_messages(fields.messages))
        tools = asked_tools(body.decode(TOOL_DECODER))
        options = _chat_options(fields, prompt, b"" if tools is None else tools.for_template)
        ignored += unseen_fields(fields.messages)
    return TokenizeRequest(prompt, options, bool(fields.return_token_strs), ignored)


def parse_detokenize_request(body: RequestBody, model: ServedModel) -> DetokenizeRequest:
    """Raises InvalidRequest, UnknownModel."""
    fields = body.decode(_DETOKENIZE_DECODER)
    check_shared(SharedFields(model=fields.model), model)
    if fields.tokens:
        check_ids(fields.tokens, "tokens", model.vocab_size)
    return DetokenizeRequest(fields.tokens, _ignored(body, DetokenizeFields.__struct_fields__))


def _text_prompt(prompt: str | list[msgspec.Raw] | None) -> TextPrompt:
    if not isinstance(prompt, str):
        raise InvalidRequest(
            "prompt: /tokenize takes one text; send several prompts one by one, and token ids to /detokenize",
            param="prompt",
        )
    return TextPrompt(prompt)


def _chat_options(fields: TokenizeFields, prompt: ChatPrompt, tools: bytes) -> PromptOptions:
    return PromptOptions(
        add_special_tokens=fields.add_special_tokens,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        add_generation_prompt=opens_answer(
            fields.add_generation_prompt, fields.continue_final_message, prompt.messages
        ),
        continue_final_message=bool(fields.continue_final_message),
        template_kwargs=template_kwargs(fields.chat_template_kwargs, fields.documents, fields.reasoning_effort),
        tools=tools,
    )


def _ignored(body: RequestBody, fields: tuple[str, ...]) -> list[str]:
    """Names that nothing is done for, in the request's order. Raises NotSupportedYet for `PROMPT_FIELDS`.

    Of a generating request's fields only those matter that make the prompt: its sampling fields are ignored like any
    other, so that a client can send the same body to be counted first.
    """
    own = frozenset(fields)
    looked_at = {name: raw for name, raw in body.fields.items() if name in PROMPT_FIELDS or name in NO_EFFECT}
    unknown = refuse_unsupported(RequestBody(body.body, looked_at), supported=own)
    return [name for name in body.fields if name not in own and (name not in looked_at or name in unknown)]
