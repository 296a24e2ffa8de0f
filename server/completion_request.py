"""POST /v1/completions: from the body to a `GenerationRequest`."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest, NotSupportedYet
from ..mailbox.messages.requests import TextPrompt, TokenPrompt
from .generation_request import GenerationRequest
from .request_body import RequestBody, decode_field, wrong_field
from .request_fields import (
    SHARED_DECODER,
    SHARED_NAMES,
    TopLogprobs,
    check_length,
    check_model,
    includes_usage,
    sampling_params,
)
from .unsupported_fields import SPECIAL_TOKENS_IN_TEXT, refuse_unsupported


class CompletionFields(msgspec.Struct, frozen=True):
    """The fields that completions alone has."""

    prompt: msgspec.Raw
    logprobs: TopLogprobs | None = None


_FIELDS_DECODER = msgspec.json.Decoder(CompletionFields)
_TEXT_DECODER = msgspec.json.Decoder(str)
_IDS_DECODER = msgspec.json.Decoder(list[int])
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_NAMES = SHARED_NAMES | frozenset(CompletionFields.__struct_fields__)


def parse_completion_request(
    body: RequestBody, *, served_name: str, max_model_len: int, vocab_size: int
) -> GenerationRequest:
    """Raises InvalidRequest, NotSupportedYet, UnknownModel."""
    shared = body.decode(SHARED_DECODER)
    check_model(shared, served_name)
    ignored = refuse_unsupported(body, supported=_NAMES, endpoint_fields=SPECIAL_TOKENS_IN_TEXT)
    fields = body.decode(_FIELDS_DECODER)
    prompt = _prompt(bytes(fields.prompt), vocab_size)
    num_prompt_tokens = len(prompt.token_ids) if isinstance(prompt, TokenPrompt) else None
    check_length(shared.max_tokens, "max_tokens", num_prompt_tokens, max_model_len)
    return GenerationRequest(
        endpoint="completion",
        prompt=prompt,
        sampling=sampling_params(shared, max_tokens=shared.max_tokens, logprobs=fields.logprobs),
        num_choices=shared.n or 1,
        cache_salt=shared.cache_salt or "",
        returns_token_ids=bool(shared.return_token_ids),
        streams=bool(shared.stream),
        includes_usage=includes_usage(shared),
        ignored_fields=ignored,
    )


def _prompt(raw: bytes, vocab_size: int) -> TextPrompt | TokenPrompt:
    """Text, token ids, or a list that holds one of them."""
    raw = raw.strip()
    if raw.startswith(b"["):
        try:
            token_ids = _IDS_DECODER.decode(raw)
        except msgspec.ValidationError as error:
            return _single(raw, error, vocab_size)
        except (msgspec.DecodeError, RecursionError) as error:
            raise wrong_field(error, "prompt") from None
        return _token_prompt(token_ids, vocab_size)
    if not raw.startswith(b'"'):
        raise InvalidRequest("prompt: expected text or a list of token ids", param="prompt")
    return _text_prompt(decode_field(raw, _TEXT_DECODER, "prompt"))


def _single(raw: bytes, why_no_ids: msgspec.ValidationError, vocab_size: int) -> TextPrompt | TokenPrompt:
    """A list that is no list of ids: of one prompt it is that prompt, of several it is not supported yet."""
    items = [bytes(item).strip() for item in _LIST_DECODER.decode(raw)]
    if not all(item.startswith((b'"', b"[")) for item in items):
        raise wrong_field(why_no_ids, "prompt")
    if len(items) > 1:
        raise NotSupportedYet(f"a list of {len(items)} prompts", param="prompt")
    if items[0].startswith(b"["):
        return _token_prompt(decode_field(items[0], _IDS_DECODER, "prompt[0]"), vocab_size)
    text = decode_field(items[0], _TEXT_DECODER, "prompt[0]")
    if text.lstrip("-").isdecimal():
        raise InvalidRequest(
            f"prompt[0] is the text {text!r}, which looks like a token id in quotes; token ids are integers, and text "
            "that is a number is sent without the list",
            param="prompt",
        )
    return _text_prompt(text)


def _text_prompt(text: str) -> TextPrompt:
    if not text:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    return TextPrompt(text)


def _token_prompt(token_ids: list[int], vocab_size: int) -> TokenPrompt:
    if not token_ids:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    smallest, largest = min(token_ids), max(token_ids)
    if smallest < 0 or largest >= vocab_size:
        wrong = smallest if smallest < 0 else largest
        raise InvalidRequest(
            f"prompt: token id {wrong} is out of vocabulary: the ids of this model are 0 to {vocab_size - 1}",
            param="prompt",
        )
    return TokenPrompt(token_ids)
