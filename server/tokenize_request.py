"""POST /tokenize and /detokenize: from the body to what the frontend is asked."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest
from ..mailbox.messages.requests import ChatPrompt, Prompt, PromptOptions, TextPrompt
from .chat_request import _message, _unknown
from .request_body import RequestBody
from .request_fields import SharedFields, check_model
from .unsupported_fields import NO_EFFECT, refuse_unsupported

PROMPT_FIELDS = frozenset({"tools", "functions", "chat_template", "documents", "mm_processor_kwargs"})
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
    chat_template_kwargs: dict[str, msgspec.Raw] | None = None


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


def parse_tokenize_request(body: RequestBody, *, served_name: str) -> TokenizeRequest:
    """Raises InvalidRequest, NotSupportedYet, UnknownModel."""
    fields = body.decode(_TOKENIZE_DECODER)
    check_model(SharedFields(model=fields.model), served_name)
    ignored = _ignored(body, TokenizeFields)
    has_text = fields.prompt is not None
    if has_text == (fields.messages is not None):
        which = "not both" if has_text else "one of them is needed"
        raise InvalidRequest(f"prompt or messages: {which}", param="messages" if has_text else "prompt")
    prompt: Prompt
    if fields.prompt is not None:
        prompt = _text_prompt(fields.prompt)
    else:
        assert fields.messages is not None
        prompt = ChatPrompt(tuple(_message(raw, f"messages[{index}]") for index, raw in enumerate(fields.messages)))
        ignored += [name for index, raw in enumerate(fields.messages) for name in _unknown(raw, f"messages[{index}]")]
    return TokenizeRequest(prompt, _options(body, fields), bool(fields.return_token_strs), ignored)


def parse_detokenize_request(body: RequestBody, *, served_name: str, vocab_size: int) -> DetokenizeRequest:
    """Raises InvalidRequest, UnknownModel."""
    fields = body.decode(_DETOKENIZE_DECODER)
    check_model(SharedFields(model=fields.model), served_name)
    for token_id in (min(fields.tokens, default=0), max(fields.tokens, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"tokens: token id {token_id} is out of vocabulary: the ids of this model are 0 to {vocab_size - 1}",
                param="tokens",
            )
    return DetokenizeRequest(fields.tokens, _ignored(body, DetokenizeFields))


def _text_prompt(prompt: str | list[msgspec.Raw]) -> TextPrompt:
    if not isinstance(prompt, str):
        raise InvalidRequest(
            "prompt: /tokenize takes one text; send several prompts one by one, and token ids to /detokenize",
            param="prompt",
        )
    return TextPrompt(prompt)


def _options(body: RequestBody, fields: TokenizeFields) -> PromptOptions:
    continues = bool(fields.continue_final_message)
    if fields.messages is None:
        return PromptOptions(add_special_tokens=fields.add_special_tokens)
    if not fields.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    if continues and fields.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other: the last message is left open, or a "
            "new one is opened",
            param="add_generation_prompt",
        )
    opens_answer = not continues if fields.add_generation_prompt is None else fields.add_generation_prompt
    return PromptOptions(
        add_special_tokens=fields.add_special_tokens,
        add_generation_prompt=opens_answer,
        continue_final_message=continues,
        template_kwargs=bytes(body.fields["chat_template_kwargs"]) if fields.chat_template_kwargs else b"",
    )


def _ignored(body: RequestBody, fields: type[msgspec.Struct]) -> list[str]:
    """Names that nothing is done for, in the request's order. Raises NotSupportedYet for `PROMPT_FIELDS`.

    Of a generating request's fields only those matter that make the prompt: its sampling fields are ignored like any
    other, so that a client can send the same body to be counted first.
    """
    own = frozenset(fields.__struct_fields__)
    looked_at = {name: raw for name, raw in body.fields.items() if name in PROMPT_FIELDS or name in NO_EFFECT}
    unknown = refuse_unsupported(RequestBody(body.body, looked_at), supported=own, endpoint_fields={})
    return [name for name in body.fields if name not in own and (name not in looked_at or name in unknown)]
