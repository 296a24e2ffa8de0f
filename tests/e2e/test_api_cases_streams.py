"""Reported faults of streams and of text, at both endpoints, with several choices and prompts: S02, S04, S06, S08, S09.

Expected texts come from an answer without stop strings, cut by `str.find`, or from the reference file.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from callboard.tests.e2e.api import ENDPOINTS, STREAM, Api, at_once, choices_of, usage_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("letters_idle")]

ROOT = Path(__file__).resolve().parent.parent.parent
PROMPTS = ("Once upon a time", "There was")
MULTI_BYTE = "日本語の文章：私は"
"""SmolLM2 answers it in characters of several tokens."""
STORY = {"max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def whole_texts(letters: Api) -> dict[str, str]:
    """By endpoint and prompt: what comes without a stop string."""
    return {
        f"{endpoint} {prompt}": letters.text(endpoint, prompt, **STORY)
        for endpoint, prompt in itertools.product(ENDPOINTS, PROMPTS)
    }


# S02: stop strings over token borders


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_stop_strings_end_each_choice_where_they_begin(
    letters: Api, whole_texts: dict[str, str], endpoint: str
) -> None:
    """Of every length, streamed or not, one choice or two, included or not."""
    check_stops(letters, endpoint, PROMPTS[0], whole_texts[f"{endpoint} {PROMPTS[0]}"])


def test_stop_strings_in_characters_of_several_tokens(smol: Api) -> None:
    text = smol.text("completions", MULTI_BYTE, **STORY)
    assert not text.isascii()
    check_stops(smol, "completions", MULTI_BYTE, text)


def check_stops(api: Api, endpoint: str, prompt: str, text: str) -> None:
    stops = [text[i : i + k] for i, k in ((0, 3), (1, 1), (3, 7), (6, 2), (8, 9), (len(text) - 4, 4)) if i < len(text)]
    logprobs = {"logprobs": True} if endpoint == "chat" else {"logprobs": 0}
    cases = [
        {"stop": [stop, "never\n\n\nseen"], "n": 1 + index % 2, "include_stop_str_in_output": includes, **stream}
        for index, stop in enumerate(stops)
        for includes, stream in itertools.product((False, True), ({}, STREAM))
    ]
    replies = at_once(lambda case: api.ask(endpoint, prompt, **STORY, **logprobs, **case, return_token_ids=True), cases)
    for case, reply in zip(cases, replies, strict=True):
        stop = case["stop"][0]
        expected = text[: text.find(stop) + (len(stop) if case["include_stop_str_in_output"] else 0)]
        choices = choices_of(reply)
        assert len(choices) == case["n"]
        for choice in choices:
            assert (choice.text, choice.finish_reason, choice.stop_reason) == (expected, "stop", stop), case
            assert len(choice.logprobs) == len(choice.token_ids)
        assert sum(len(choice.token_ids) for choice in choices) == usage_of(reply)["completion_tokens"]


def test_several_stop_strings_for_several_prompts(letters: Api, whole_texts: dict[str, str]) -> None:
    """Of four, the first that is whole ends its prompt's answer; what a prompt holds ends nothing, echoed or not."""
    texts = [whole_texts[f"completions {prompt}"] for prompt in PROMPTS]
    in_both = [text[i : i + 5] for text, i in zip(texts, (9, 4), strict=True)]
    stops = [*in_both, "Once upon", "There was"]
    assert not any(stop in text for stop in stops[2:] for text in texts)
    for echo, stream in itertools.product((False, True), ({}, STREAM)):
        choices = letters.choices("completions", list(PROMPTS), n=2, stop=stops, echo=echo, **STORY, **stream)
        assert len(choices) == 4
        for index, choice in enumerate(choices):
            text, prompt = texts[index // 2], PROMPTS[index // 2]
            end = min(text.find(stop) for stop in stops if stop in text)
            assert choice.text == (prompt if echo else "") + text[:end]
            assert choice.stop_reason in in_both


def test_a_stop_string_that_only_begins_is_part_of_the_text(letters: Api, whole_texts: dict[str, str]) -> None:
    """Held back until the end, and then shown: the end is max_tokens, so it comes with the last chunk."""
    for endpoint, prompt, stream in itertools.product(ENDPOINTS, PROMPTS, ({}, STREAM)):
        text = whole_texts[f"{endpoint} {prompt}"]
        (choice,) = letters.choices(endpoint, prompt, stop=[text[-6:] + "~", text[3:9] + "~"], **STORY, **stream)
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (text, "length", None)


# S04 and S06: chunks


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("n", "num_prompts"), [(1, 1), (2, 1), (2, 2)])
def test_usage_in_streams(letters: Api, endpoint: str, n: int, num_prompts: int) -> None:
    """One chunk without choices, the last; the others have null, or with running counts those of their choice."""
    if endpoint == "chat" and num_prompts > 1:
        pytest.skip("a chat request has one prompt")
    prompt: Any = list(PROMPTS)[:num_prompts] if num_prompts > 1 else "hi"
    body = {"max_tokens": 8, "ignore_eos": True, "n": n}
    usage = usage_of(letters.ask(endpoint, prompt, **body))
    assert usage["completion_tokens"] == 8 * n * num_prompts
    for includes, runs in itertools.product((None, False, True), repeat=2):
        options = {"include_usage": includes, "continuous_usage_stats": runs}
        chunks = letters.ask(endpoint, prompt, **body, stream=True, stream_options=options).chunks
        assert [chunk["choices"] == [] for chunk in chunks] == [False] * (len(chunks) - 1) + [bool(includes)]
        if includes:
            last = chunks.pop()["usage"]
            for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert last[key] == usage[key]
            assert last["total_tokens"] == last["prompt_tokens"] + last["completion_tokens"]
        if not (includes and runs):
            assert all(chunk.get("usage") is None for chunk in chunks)
            continue
        for index in range(n * num_prompts):
            counts = [c["usage"]["completion_tokens"] for c in chunks if c["choices"][0]["index"] == index]
            assert counts == sorted(counts) and counts[-1] == 8
    for stream in ({}, {"stream": False}):
        refused = letters.ask(endpoint, prompt, **body, **stream, stream_options={"include_usage": True})
        assert (refused.status, refused.error["param"]) == (400, "stream_options")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"echo": True}, {"n": 2, "logprobs": 1}, {"stop": ["e"]}], ids=str)
def test_chunks_have_every_key_and_one_identity(letters: Api, endpoint: str, fields: dict[str, Any]) -> None:
    if endpoint == "chat" and "logprobs" in fields:
        fields = {**fields, "logprobs": True, "top_logprobs": 1}
    reply = letters.ask(endpoint, "hi", max_tokens=5, **fields, **STREAM)
    chunks = reply.chunks
    assert {chunk["object"] for chunk in chunks} == {
        "chat.completion.chunk" if endpoint == "chat" else "text_completion"
    }
    for key in ("id", "created", "model"):
        assert len({chunk[key] for chunk in chunks}) == 1
    for index in range(fields.get("n", 1)):
        raws = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        reasons = [raw["finish_reason"] for raw in raws]
        assert reasons[:-1] == [None] * (len(raws) - 1) and reasons[-1] in ("stop", "length")
        if endpoint == "chat":
            assert [raw["delta"].get("role") for raw in raws] == ["assistant"] + [None] * (len(raws) - 1)
    whole = letters.ask(endpoint, "hi", max_tokens=5, **fields)
    assert [(c.text, c.finish_reason, c.stop_reason, c.logprobs) for c in choices_of(reply)] == [
        (c.text, c.finish_reason, c.stop_reason, c.logprobs) for c in choices_of(whole)
    ]


# S08: text offsets


@pytest.mark.parametrize("echo", [False, True])
def test_text_offsets_are_sums_of_lengths(letters: Api, whole_texts: dict[str, str], echo: bool) -> None:
    """With stop strings that do not come, that come, and that come from the middle of a token; of each choice."""
    text = whole_texts[f"completions {PROMPTS[0]}"]
    for stop, includes in itertools.product(("\n~\n", text[6:11], text[2:4]), (False, True)):
        check_offsets(letters, PROMPTS[0], stop, includes, echo)


def test_text_offsets_of_characters_of_several_tokens(smol: Api) -> None:
    text = smol.text("completions", MULTI_BYTE, **STORY)
    check_offsets(smol, MULTI_BYTE, text[3:5], includes=True, echo=True)


def check_offsets(api: Api, prompt: str, stop: str, includes: bool, echo: bool) -> None:
    fields = {"echo": echo, "logprobs": 1, "n": 2, "stop": [stop], "include_stop_str_in_output": includes, **STORY}
    whole, streamed = (api.choices("completions", prompt, **fields, **stream) for stream in ({}, STREAM))
    for one, other in zip(whole, streamed, strict=True):
        assert one.text_offset == other.text_offset and one.tokens == other.tokens
        lengths = [len(token) for token in one.tokens]
        assert one.text_offset == [sum(lengths[:i]) for i in range(len(lengths))]
        if prompt.isascii():
            assert "".join(one.tokens).startswith(one.text)


# S09: the text of all tokens is the text of each


@pytest.mark.parametrize("stream", [pytest.param({}, marks=pytest.mark.nightly), STREAM], ids=["whole", "stream"])
def test_special_tokens_have_text_only_if_they_are_not_skipped(smol: Api, stream: dict[str, Any]) -> None:
    """An answer of the reference that goes on over the ends of messages; up to its first near-tie."""
    lines = (ROOT / "tests" / "data" / "smollm2_reference.jsonl").read_text().splitlines()
    reference = next(r for r in map(json.loads, lines) if r["name"] == "chat-short")
    body = {"max_tokens": 38, "ignore_eos": True, **stream}
    assert min(reference["top2_gaps"][:38]) > 0.02
    shown = smol.text("completions", reference["prompt_ids"], skip_special_tokens=False, **body)
    assert shown.count("<|im_end|>") == 3 and reference["output_text"].startswith(shown)
    hidden = smol.text("completions", reference["prompt_ids"], **body)
    assert hidden == shown.replace("<|im_end|>", "").replace("<|im_start|>", "")
