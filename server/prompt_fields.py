"""`prompt` of a completions request: text, token ids, or a list of prompts, each of which is one of the two."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest
from ..mailbox.messages.requests import TextPrompt, TokenPrompt
from .request_body import decode_field, wrong_field
from .request_fields import MAX_TOTAL_CHOICES
from .token_lists import check_ids

_TEXT_DECODER = msgspec.json.Decoder(str)
_IDS_DECODER = msgspec.json.Decoder(list[int])
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])


def prompts_of(raw: bytes, vocab_size: int) -> list[TextPrompt | TokenPrompt]:
    """At least one, in their order. Raises InvalidRequest naming the place: `prompt`, or `prompt[2]` of several."""
    raw = raw.strip()
    if not raw.startswith(b"["):
        if not raw.startswith(b'"'):
            raise InvalidRequest("prompt: expected text, token ids, or a list of prompts", param="prompt")
        return [_text_prompt(decode_field(raw, _TEXT_DECODER, "prompt"), "prompt")]
    try:
        token_ids = _IDS_DECODER.decode(raw)
    except msgspec.ValidationError as error:
        return _listed(raw, error, vocab_size)
    except (msgspec.DecodeError, RecursionError) as error:
        raise wrong_field(error, "prompt") from None
    return [_token_prompt(token_ids, "prompt", vocab_size)]


def _listed(raw: bytes, why_no_ids: msgspec.ValidationError, vocab_size: int) -> list[TextPrompt | TokenPrompt]:
    """A list that is no list of ids is one of prompts."""
    items = [bytes(item).strip() for item in _LIST_DECODER.decode(raw)]
    if not all(item.startswith((b'"', b"[")) for item in items):
        raise wrong_field(why_no_ids, "prompt")
    if len(items) > MAX_TOTAL_CHOICES:
        raise InvalidRequest(
            f"prompt: {len(items):,} prompts; the limit of a request is {MAX_TOTAL_CHOICES:,}", param="prompt"
        )
    prompts: list[TextPrompt | TokenPrompt] = []
    for index, item in enumerate(items):
        param = f"prompt[{index}]"
        if item.startswith(b"["):
            prompts.append(_token_prompt(decode_field(item, _IDS_DECODER, param), param, vocab_size))
        else:
            prompts.append(_text_prompt(decode_field(item, _TEXT_DECODER, param), param))
    match prompts:
        case [TextPrompt(text)] if text.lstrip("-").isdecimal():
            raise InvalidRequest(
                f"prompt[0] is the text {text!r}, which looks like a token id in quotes; token ids are integers, and "
                "text that is a number is sent without the list",
                param="prompt",
            )
    return prompts


def _text_prompt(text: str, param: str) -> TextPrompt:
    if not text:
        raise InvalidRequest(f"{param} must not be empty", param=param)
    return TextPrompt(text)


def _token_prompt(token_ids: list[int], param: str, vocab_size: int) -> TokenPrompt:
    if not token_ids:
        raise InvalidRequest(f"{param} must not be empty", param=param)
    check_ids(token_ids, param, vocab_size)
    return TokenPrompt(token_ids)
