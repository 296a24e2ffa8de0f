"""Each field that decides which tokens come or where an answer begins and ends, through HTTP on the real model.

Greedy answers, so that what must come is known: from the reference file, the tokenizer, or the field's own law.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard.bench.reference import load_references
from callboard.bench.server_process import ServerProcess

pytestmark = pytest.mark.slow

Ask = Callable[..., Any]
REFERENCES = {
    reference.name: reference
    for reference in load_references(Path(__file__).parent.parent / "data" / "smollm2_reference.jsonl")
}
STORY, CHAT = REFERENCES["raw-story"], REFERENCES["chat-short"]
VOCABULARY = 49_152
END = 2
"""<|im_end|>"""
ANSWER = STORY.output_ids


@pytest.fixture
def complete(smol_server: ServerProcess, send: Ask) -> Callable[..., dict[str, Any]]:
    """`complete(**fields)` -> the choice, with its usage, of a greedy answer of 6 tokens to the story's beginning."""

    def ask(**fields: object) -> dict[str, Any]:
        body = {"prompt": STORY.prompt_ids, "temperature": 0, "max_tokens": 6, "return_token_ids": True, **fields}
        reply = send(f"{smol_server.url}/v1/completions", body)
        assert reply.status == 200, reply.text
        choice: dict[str, Any] = {**reply.json["choices"][0], "usage": reply.json["usage"]}
        return choice

    return ask


@pytest.fixture
def chat(smol_server: ServerProcess, send: Ask) -> Ask:
    return lambda **fields: (
        send(
            f"{smol_server.url}/v1/chat/completions",
            {"temperature": 0, "max_tokens": 4, "return_token_ids": True, **fields},
        ).json
    )


@pytest.fixture
def ids_of(smol_server: ServerProcess, send: Ask) -> Callable[..., list[int]]:
    return lambda text, **fields: send(f"{smol_server.url}/tokenize", {"prompt": text, **fields}).json["tokens"]


def test_the_answer_without_any_of_them(complete: Ask) -> None:
    assert complete()["token_ids"] == ANSWER[:6]


def test_bias_and_masks(complete: Ask, ids_of: Ask) -> None:
    last = VOCABULARY - 1
    assert complete(logit_bias={str(last): 100})["token_ids"] == [last] * 6
    assert complete(logit_bias={str(last): 1e9})["token_ids"] == [last] * 6
    assert ANSWER[0] not in complete(logit_bias={str(ANSWER[0]): -100})["token_ids"]
    assert set(complete(allowed_token_ids=[300, 301, last])["token_ids"]) <= {300, 301, last}
    second = complete(logprobs=2, max_tokens=1)["logprobs"]["top_logprobs"][0]
    runner_up = min(second, key=lambda token: second[token])
    assert complete(bad_words=[max(second, key=lambda token: second[token]).strip()], max_tokens=1)["text"] == runner_up


def test_penalties(complete: Ask) -> None:
    """A token that is pushed to every place is let go once the penalty of its repeats outweighs the push."""
    token = ANSWER[0]
    best, margin = complete(max_tokens=1, logprobs=0)["logprobs"]["token_logprobs"][0], 40
    assert math.isfinite(best)
    pushed = {"logit_bias": {str(token): margin}}
    assert complete(**pushed)["token_ids"] == [token] * 6
    assert complete(**pushed, repetition_penalty=100)["token_ids"][:2] != [token] * 2
    few = complete(logit_bias={str(token): 12}, frequency_penalty=2, max_tokens=24)["token_ids"].count(token)
    many = complete(logit_bias={str(token): 12}, presence_penalty=2, max_tokens=24)["token_ids"].count(token)
    assert few < many


def test_ends(complete: Ask) -> None:
    """Stop ids and strings, each held off by min_tokens, and told by stop_reason."""
    ids, text = ANSWER[:6], complete()["text"]
    third = next(i for i in range(2, 6) if ids[i] not in ids[:i])
    stopped = complete(stop_token_ids=[ids[third]])
    assert (stopped["token_ids"], stopped["finish_reason"], stopped["stop_reason"]) == (
        ids[: third + 1], "stop", ids[third]
    )  # fmt: skip
    assert stopped["usage"]["completion_tokens"] == third + 1
    held_off = complete(stop_token_ids=[ids[third]], min_tokens=6)
    assert ids[third] not in held_off["token_ids"] and held_off["usage"]["completion_tokens"] == 6
    word = text[len(text) // 2 :][:3]
    cut, kept = complete(stop=word), complete(stop=word, include_stop_str_in_output=True)
    end = text.index(word)
    assert (cut["text"], kept["text"]) == (text[:end], text[: end + len(word)])
    assert cut["stop_reason"] == kept["stop_reason"] == word
    assert complete(stop=word, min_tokens=6)["usage"]["completion_tokens"] == 6
    assert complete(logit_bias={str(END): 100})["usage"]["completion_tokens"] == 1
    assert complete(logit_bias={str(END): 100}, ignore_eos=True)["usage"]["completion_tokens"] == 6


def test_repetition_is_detected(complete: Ask) -> None:
    fields = {"logit_bias": {"300": 100}, "max_tokens": 10}
    ended = complete(**fields, repetition_detection={"max_pattern_size": 2, "min_pattern_size": 2, "min_count": 4})
    assert (ended["finish_reason"], ended["usage"]["completion_tokens"]) == ("repetition", 8)
    assert complete(**fields)["finish_reason"] == "length"


def test_special_tokens_have_a_text_only_on_request(complete: Ask) -> None:
    fields = {"logit_bias": {str(END): 100}, "ignore_eos": True, "max_tokens": 2}
    assert complete(**fields)["text"] == ""
    assert complete(**fields, skip_special_tokens=False)["text"] == "<|im_end|>" * 2


def test_processed_log_probabilities(complete: Ask) -> None:
    """Of two tokens that alone may come: their share of the two, divided by the temperature; raw ones do not change."""
    raw = complete(logprobs=2, max_tokens=1)["logprobs"]["top_logprobs"][0]
    fields = {"allowed_token_ids": [ANSWER[0], 300], "logprobs": 1, "max_tokens": 1}
    assert complete(**fields)["logprobs"]["token_logprobs"] == pytest.approx([max(raw.values())], abs=1e-3)
    own = complete(**fields, logprobs_mode="processed_logprobs")["logprobs"]["token_logprobs"][0]
    warm = complete(**fields, logprobs_mode="processed_logprobs", temperature=1, top_k=1)["logprobs"]["token_logprobs"]
    assert -0.1 < own <= 0 and warm == pytest.approx([0.0], abs=1e-6)


def test_prompts_are_truncated_from_the_left(complete: Ask) -> None:
    ids = STORY.prompt_ids
    for count in (1, 2, len(ids), len(ids) + 50, -1):
        choice = complete(truncate_prompt_tokens=count, max_tokens=2)
        assert choice["prompt_token_ids"] == (ids[-count:] if 0 < count < len(ids) else ids)
    long = complete(prompt=[5] * 9000, truncate_prompt_tokens=12, max_tokens=1)
    assert long["usage"]["prompt_tokens"] == 12


def test_how_a_chat_prompt_ends(chat: Ask, ids_of: Ask) -> None:
    """With the opening of an answer, without it, and in the middle of the last message."""
    opened = chat(messages=CHAT.source)["prompt_token_ids"]
    assert opened == CHAT.prompt_ids
    opening = ids_of("<|im_start|>assistant\n")
    bare = chat(messages=CHAT.source, add_generation_prompt=False)["prompt_token_ids"]
    assert bare + opening == opened
    assert isinstance(CHAT.source, list)
    begun = [*CHAT.source, {"role": "assistant", "content": "Gravity"}]
    answer = chat(messages=begun, continue_final_message=True, echo=True)
    assert answer["prompt_token_ids"] == opened + ids_of("Gravity")
    assert answer["choices"][0]["token_ids"] == CHAT.output_ids[2:6], "'Gravity' is the reference's first two tokens"
    assert answer["choices"][0]["message"]["content"].startswith("Gravity")
    assert chat(messages=CHAT.source, chat_template_kwargs={"no_such_variable": 1})["prompt_token_ids"] == opened


def test_a_salt_keeps_prefixes_apart(complete: Ask) -> None:
    prompt = [*range(4000, 4040)]
    cached = [
        complete(prompt=prompt, max_tokens=1, cache_salt=salt)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for salt in ("a", "a", "b", "a")
    ]
    assert cached == [0, 32, 0, 32]
