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


class Expected(msgspec.Struct, frozen=True):
    """One choice as it must be."""

    text: str
    finish_reason: str
    token_ids: list[int] | None
    """None where a stop string decides how many there are."""


class SoakRequest(msgspec.Struct, frozen=True):
    """One request, and the answer as it must be."""

    path: str
    body: bytes
    is_stream: bool
    abort_after: int | None
    """The client leaves after so many pieces of the answer; None: it stays."""
    choices: list[Expected]
    has_logprobs: bool = False


def make_request(index: int, tokenizer: Tokenizer, device: NullDevice) -> SoakRequest:
    """Request `index` of a soak: half of them streams, half of them chats; short prompts, most with a shared prefix;
    stop strings (20 %), log-probabilities (15 %), two choices (10 %), seeds (half), clients that leave (5 %)."""
    rng = random.Random(index)
    prompt = f"{rng.choice(_PREFIXES) if rng.random() < 0.7 else ''} {index} {rng.random()}"
    is_chat, is_stream, is_aborted = rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.05
    seed = rng.randrange(2**63) if rng.random() < 0.5 else None
    stop = rng.choice(_STOPS) if rng.random() < 0.2 else None
    num_logprobs = rng.randint(0, 5) if rng.random() < 0.15 else None
    ignore_eos, num_choices = rng.random() < 0.5, 2 if rng.random() < 0.1 else 1
    max_tokens = 1000 if is_aborted else rng.randint(1, MAX_TOKENS)
    fields: dict[str, object] = {
        "max_tokens": max_tokens,
        "temperature": 0 if seed is None else 0.8,
        "ignore_eos": ignore_eos,
        "stream": is_stream or is_aborted,
        "return_token_ids": True,
        "n": num_choices,
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
    num_known = 0 if is_aborted else max_tokens
    answers = [device.answer(prompt_ids, num_known, seed=seed, choice=i) for i in range(num_choices)]
    return SoakRequest(
        path="/v1/chat/completions" if is_chat else "/v1/completions",
        body=msgspec.json.encode(fields),
        is_stream=is_stream or is_aborted,
        abort_after=rng.randint(0, 12) if is_aborted else None,
        choices=[_expected(tokenizer, tokens, ignore_eos, stop) for tokens in answers],
        has_logprobs=num_logprobs is not None,
    )


def _expected(tokenizer: Tokenizer, tokens: list[int], ignore_eos: bool, stop: str | None) -> Expected:
    """The choice for which the device goes on with `tokens`."""
    finish_reason = "length"
    if not ignore_eos and 0 in tokens:
        tokens, finish_reason = tokens[: tokens.index(0) + 1], "stop"
    text = tokenizer.decode(tokens)
    if stop is not None and stop in text:
        return Expected(text[: text.index(stop)], "stop", None)
    return Expected(text, finish_reason, tokens)


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
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
    parts: list[_Choice] = []
    if request.is_stream:
        events = [line[6:] for line in body.split(b"\n\n") if line.startswith(b"data: ")]
        if not events or events[-1] != b"[DONE]":
            return f"a stream ends without [DONE]: {body[-300:]!r}"
        for event in events[:-1]:
            parts += _decoder.decode(event).choices
    else:
        parts = _decoder.decode(body).choices
    for index, expected in enumerate(request.choices):
        fault = _fault_of_choice(expected, [part for part in parts if part.index == index], request.has_logprobs)
        if fault is not None:
            return f"choice {index} of {len(request.choices)}: {fault}"
    return None


def _fault_of_choice(expected: Expected, parts: list[_Choice], has_logprobs: bool) -> str | None:
    text = "".join(_text_of(part) for part in parts)
    token_ids = [token_id for part in parts for token_id in part.token_ids]
    finish_reason = parts[-1].finish_reason if parts else None
    if (text, finish_reason) != (expected.text, expected.finish_reason):
        return f"{text!r} ({finish_reason}) instead of {expected.text!r} ({expected.finish_reason})"
    if expected.token_ids is not None and token_ids != expected.token_ids:
        return f"tokens {token_ids} instead of {expected.token_ids}"
    if has_logprobs and not any(part.logprobs for part in parts):
        return "no log-probabilities"
    return None


def _text_of(choice: _Choice) -> str:
    part = choice.message or choice.delta
    return (choice.text if part is None else part.content) or ""
