"""The mixed requests of a soak, each with what its answer must be."""

from __future__ import annotations

import random

import msgspec

from ..text.tokenizer import Tokenizer
from .null_answers import NullDevice

MAX_TOKENS = 32
_PREFIXES = [" ".join(f"{word}{i}" for word in ("board", "call", "actor", "stage") * 6) for i in range(8)]
"""Of 200 to 300 tokens: whole blocks are found in the prefix cache."""
_STOPS = ("q", "zz", "xy", "ab")


class SoakRequest(msgspec.Struct, frozen=True):
    """One request, and the answer as it must be."""

    path: str
    body: bytes
    is_stream: bool
    abort_after: int | None
    """The client leaves after so many pieces of the answer; None: it stays."""
    text: str
    token_ids: list[int] | None
    """None where a stop string decides how many there are."""
    finish_reason: str
    num_logprobs: int | None


def make_request(index: int, tokenizer: Tokenizer, device: NullDevice) -> SoakRequest:
    """Request `index` of a soak: half of them streams, half of them chats; short prompts, most with a shared prefix;
    stop strings (20 %), log-probabilities (15 %), seeds (half), clients that leave (5 %)."""
    rng = random.Random(index)
    prompt = f"{rng.choice(_PREFIXES) if rng.random() < 0.7 else ''} {index} {rng.random()}"
    is_chat, is_stream, is_aborted = rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.05
    seed = rng.randrange(2**63) if rng.random() < 0.5 else None
    stop = rng.choice(_STOPS) if rng.random() < 0.2 else None
    num_logprobs = rng.randint(0, 5) if rng.random() < 0.15 else None
    ignore_eos = rng.random() < 0.5
    max_tokens = 1000 if is_aborted else rng.randint(1, MAX_TOKENS)
    fields: dict[str, object] = {
        "max_tokens": max_tokens,
        "temperature": 0 if seed is None else 0.8,
        "ignore_eos": ignore_eos,
        "stream": is_stream or is_aborted,
        "return_token_ids": True,
    }
    if seed is not None:
        fields["seed"] = seed
    if stop is not None:
        fields["stop"] = stop
    if is_chat:
        fields["messages"] = [{"role": "user", "content": prompt}]
        if num_logprobs is not None:
            fields |= {"logprobs": True, "top_logprobs": num_logprobs}
        prompt_ids = tokenizer.encode(f"user: {prompt}\n", False)
    else:
        prompt_ids = tokenizer.encode(prompt, True)
        fields["prompt"] = prompt_ids if rng.random() < 0.2 else prompt
        if num_logprobs is not None:
            fields["logprobs"] = num_logprobs
    tokens = device.answer(prompt_ids, 0 if is_aborted else max_tokens, seed=seed)
    text, token_ids, finish_reason = _answer(tokenizer, tokens, fields)
    return SoakRequest(
        path="/v1/chat/completions" if is_chat else "/v1/completions",
        body=msgspec.json.encode(fields),
        is_stream=is_stream or is_aborted,
        abort_after=rng.randint(0, 12) if is_aborted else None,
        text=text,
        token_ids=token_ids,
        finish_reason=finish_reason,
        num_logprobs=num_logprobs,
    )


def _answer(tokenizer: Tokenizer, tokens: list[int], fields: dict[str, object]) -> tuple[str, list[int] | None, str]:
    """(text, token ids if they are known, finish reason) where the device goes on with `tokens`."""
    finish_reason, stop = "length", fields.get("stop")
    if not fields["ignore_eos"] and 0 in tokens:
        tokens, finish_reason = tokens[: tokens.index(0) + 1], "stop"
    text = tokenizer.decode(tokens)
    if isinstance(stop, str) and stop in text:
        return text[: text.index(stop)], None, "stop"
    return text, tokens, finish_reason


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    delta: _Message | None = None
    text: str | None = None
    token_ids: list[int] = []
    finish_reason: str | None = None
    logprobs: dict[str, msgspec.Raw] | None = None


class _Answer(msgspec.Struct):
    """A whole answer, or a chunk of one."""

    choices: list[_Choice] = []


_decoder = msgspec.json.Decoder(_Answer)


def fault_of(request: SoakRequest, status: int, body: bytes) -> str | None:
    """What is wrong with the answer to a request that was not aborted; None if it is right."""
    if status != 200:
        return f"status {status}: {body[:300]!r}"
    choices: list[_Choice] = []
    if request.is_stream:
        events = [line[6:] for line in body.split(b"\n\n") if line.startswith(b"data: ")]
        if not events or events[-1] != b"[DONE]":
            return f"a stream ends without [DONE]: {body[-300:]!r}"
        for event in events[:-1]:
            choices += _decoder.decode(event).choices
    else:
        choices = _decoder.decode(body).choices
    text = "".join(_text_of(choice) for choice in choices)
    token_ids = [token_id for choice in choices for token_id in choice.token_ids]
    finish_reason = choices[-1].finish_reason if choices else None
    if text != request.text or finish_reason != request.finish_reason:
        return f"{text!r} ({finish_reason}) instead of {request.text!r} ({request.finish_reason})"
    if request.token_ids is not None and token_ids != request.token_ids:
        return f"tokens {token_ids} instead of {request.token_ids}"
    if request.num_logprobs is not None and not any(choice.logprobs for choice in choices if choice.token_ids):
        return "no log-probabilities"
    return None


def _text_of(choice: _Choice) -> str:
    part = choice.message or choice.delta
    return (choice.text if part is None else part.content) or ""
