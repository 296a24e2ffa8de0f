"""Streaming sessions: what a completions request may ask beside `session`, and the body of an input."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest, NotSupportedYet
from ..mailbox.messages.requests import SessionInput, TokenPrompt
from .prompt_fields import prompts_of
from .request_body import NULL, RequestBody, is_null
from .request_fields import SharedFields, check_length
from .served_model import ServedModel


class InputFields(msgspec.Struct, frozen=True):
    """The body of POST /v1/requests/{id}/input."""

    prompt: msgspec.Raw = NULL
    """Text or token ids."""
    last: bool | None = None


class InputRequest(msgspec.Struct, frozen=True):
    """A validated input; `given` None: no more comes."""

    given: SessionInput | None
    ignored_fields: list[str] = []


_DECODER = msgspec.json.Decoder(InputFields)


def check_session(
    shared: SharedFields, num_prompts: int, *, echoes: bool, asks_prompt_logprobs: bool, takes_sessions: bool
) -> None:
    """What a session cannot be asked beside. Raises InvalidRequest, NotSupportedYet."""
    options = shared.stream_options
    wrong = {
        "stream": (not shared.stream, "has to be true"),
        "n": ((shared.n or 1) != 1, "has to be 1"),
        "prompt": (num_prompts != 1, "has to be one prompt"),
        "echo": (echoes, "cannot be asked for"),
        "prompt_logprobs": (asks_prompt_logprobs, "cannot be asked for"),
        "stream_options.continuous_usage_stats": (
            options is not None and bool(options.continuous_usage_stats),
            "cannot be asked for: usage comes with the end of each turn",
        ),
    }
    for name, (is_wrong, what) in wrong.items():
        if is_wrong:
            raise InvalidRequest(f"{name} {what} in a session", param=name)
    if not takes_sessions:
        raise NotSupportedYet("session=True with several frontends in the topology", param="session")


def parse_input(body: RequestBody, model: ServedModel) -> InputRequest:
    """Raises InvalidRequest."""
    fields = body.decode(_DECODER)
    is_last = bool(fields.last)
    ignored = [name for name in body.fields if name not in InputFields.__struct_fields__]
    if is_null(fields.prompt):
        if not is_last:
            raise InvalidRequest("prompt is missing; it may be left out with last=true alone", param="prompt")
        return InputRequest(None, ignored)
    prompts = prompts_of(bytes(fields.prompt), model.vocab_size)
    if len(prompts) != 1:
        raise InvalidRequest(f"prompt: {len(prompts):,} prompts; an input is one", param="prompt")
    num_tokens = len(prompts[0].token_ids) if isinstance(prompts[0], TokenPrompt) else None
    check_length(None, "max_tokens", num_tokens, model.max_model_len)
    return InputRequest(SessionInput(prompts[0], is_last), ignored)
