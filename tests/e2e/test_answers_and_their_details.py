"""What raw HTTP answers hold, on both endpoints of the real engine: usage, indexes, echo, log-probabilities, token ids.

The expected value is the reference file's, or the same request asked in a second way.
"""

from __future__ import annotations

import itertools
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
CHAT = REFERENCES["chat-short"]
STORY = REFERENCES["raw-story"]
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": STORY.source},
    "/v1/chat/completions": {"messages": CHAT.source},
}
PROMPT_IDS = {"/v1/completions": STORY.prompt_ids, "/v1/chat/completions": CHAT.prompt_ids}
OUTPUT_IDS = {"/v1/completions": STORY.output_ids, "/v1/chat/completions": CHAT.output_ids}


@pytest.fixture(params=ENDPOINTS)
def path(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def ask(smol_server: ServerProcess, send: Ask) -> Ask:
    """`ask(path, **fields)` -> Reply to the endpoint's own question, greedy, of 6 tokens unless told otherwise."""
    return lambda path, **fields: send(
        smol_server.url + path, {**ENDPOINTS[path], "temperature": 0, "max_tokens": 6, **fields}
    )


def pieces(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices of all chunks, in order."""
    return [choice for chunk in chunks for choice in chunk["choices"]]


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice["text"] if "text" in choice else choice.get("message", choice.get("delta"))["content"]
    return text


def test_usage_is_exact_and_a_stream_is_the_whole_answer_in_pieces(ask: Ask, path: str) -> None:
    """Counts of the reference; role in the first delta only; one finish_reason, in the last chunk of text."""
    whole = ask(path).json
    (choice,) = whole["choices"]
    assert whole["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": len(PROMPT_IDS[path]),
        "completion_tokens": 6,
        "total_tokens": len(PROMPT_IDS[path]) + 6,
        "prompt_tokens_details": None,
    }
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    parts = pieces(ask(path, stream=True).chunks)
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    if path == "/v1/completions":
        assert "".join(part["text"] for part in parts) == choice["text"]
    else:
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
        assert ["role" in part["delta"] for part in parts] == [True] + [False] * (len(parts) - 1)
        assert choice["message"]["role"] == parts[0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize(("includes", "continues"), [*itertools.product((False, True), repeat=2)])
def test_usage_of_streams(ask: Ask, path: str, includes: bool, continues: bool) -> None:
    """Two choices: each chunk counts its own up to there, and the last one all of them."""
    options = {"include_usage": includes, "continuous_usage_stats": continues}
    chunks = ask(path, stream=True, n=2, stream_options=options, ignore_eos=True).chunks
    num_prompt = len(PROMPT_IDS[path])
    if includes:
        last = chunks.pop()
        assert last["choices"] == []
        assert [last["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")] == [
            num_prompt,
            12,
            num_prompt + 12,
        ]
    counts: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks:
        assert len(chunk["choices"]) == 1
        if includes and continues:
            usage = chunk["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            counts[chunk["choices"][0]["index"]].append(usage["completion_tokens"])
        else:
            assert chunk.get("usage") is None
    if includes and continues:
        for numbers in counts.values():
            assert numbers == sorted(numbers) and numbers[-1] == 6


def test_choices_of_one_seed(ask: Ask, path: str) -> None:
    """Three, all different, each within max_tokens, ending where they end; a stream has the same, each with one end."""
    fields = {"n": 3, "seed": 11, "temperature": 1.2, "max_tokens": 12, "stop": ["a"]}
    choices = ask(path, **fields).json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    texts = [text_of(choice) for choice in choices]
    assert len(set(texts)) == 3
    streamed, ends = ["", "", ""], ["", "", ""]
    for part in pieces(ask(path, **fields, stream=True).chunks):
        streamed[part["index"]] += part["text"] if "text" in part else part["delta"].get("content", "")
        ends[part["index"]] += part["finish_reason"] or ""
    assert streamed == texts
    assert ends == [choice["finish_reason"] for choice in choices]


def test_prompts_of_one_request(ask: Ask) -> None:
    """Choices in the order of the prompts, equal prompts with equal texts, whole and streamed."""
    prompts = [STORY.source, "1, 2, 3,", STORY.source]
    whole = ask("/v1/completions", prompt=prompts).json
    texts = [choice["text"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert texts[0] == texts[2] != texts[1]
    assert texts[0] == ask("/v1/completions").json["choices"][0]["text"]
    streamed = ["", "", ""]
    for part in pieces(ask("/v1/completions", prompt=prompts, stream=True).chunks):
        streamed[part["index"]] += part["text"]
    assert streamed == texts
    assert whole["usage"]["completion_tokens"] == 18


def test_number_of_log_probabilities(ask: Ask) -> None:
    """Of completions k or k + 1 at each position and the token's alone for 0; of chat exactly k."""
    for k in (0, 1, 5, 20):
        logprobs = ask("/v1/completions", logprobs=k, temperature=2.0, seed=k).json["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == 6
        for token, logprob, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            assert len(top) <= k + 1 and top[token] == logprob
        content = ask("/v1/chat/completions", logprobs=True, top_logprobs=k).json["choices"][0]["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in content] == [k] * 6
    for fields in ({}, {"logprobs": False}):
        assert ask("/v1/chat/completions", **fields).json["choices"][0]["logprobs"] is None
    for stream in (False, True):
        for path, fields in (
            ("/v1/completions", {"logprobs": 21}),
            ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}),
        ):
            refused = ask(path, stream=stream, **fields)
            assert refused.status == 400 and "20" in refused.error["message"]


def test_log_probabilities_of_the_prompt(ask: Ask) -> None:
    """A greedy answer, sent as a part of the prompt, has the log-probabilities that it was made with: per prompt."""
    made = ask("/v1/completions", logprobs=2, return_token_ids=True).json["choices"][0]
    prompts = [made["prompt_token_ids"] + made["token_ids"], made["prompt_token_ids"][:1]]
    for k in (None, 0, 2):
        choices = ask("/v1/completions", prompt=prompts, prompt_logprobs=k, max_tokens=1).json["choices"]
        if k is None:
            assert all(choice.get("prompt_logprobs") is None for choice in choices)
            continue
        entries, alone = (choice["prompt_logprobs"] for choice in choices)
        assert alone == [None]
        assert len(entries) == len(prompts[0]) and entries[0] is None
        assert all(k <= len(entry) <= k + 1 for entry in entries[1:])
        for token, logprob, entry in zip(
            made["token_ids"], made["logprobs"]["token_logprobs"], entries[-6:], strict=True
        ):
            assert entry[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-3)
            assert entry[str(token)]["rank"] == 1
    chat = ask("/v1/chat/completions", prompt_logprobs=1).json
    assert len(chat["prompt_logprobs"]) == len(CHAT.prompt_ids)


def test_echo(ask: Ask) -> None:
    """Prompt and answer are one text with one list of entries, also in pieces, while a stop string is waited for."""
    plain = ask("/v1/completions", logprobs=1).json["choices"][0]
    fields = {"echo": True, "logprobs": 1, "stop": ["\n\n\n\n"]}
    choice = ask("/v1/completions", **fields).json["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == str(STORY.source) + plain["text"] == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][-6:] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=1e-3)
    assert logprobs["text_offset"] == [0, *itertools.accumulate(len(token) for token in logprobs["tokens"])][:-1]
    parts = pieces(ask("/v1/completions", **fields, stream=True).chunks)
    assert "".join(part["text"] for part in parts) == choice["text"]
    for key in ("tokens", "text_offset"):
        assert [entry for part in parts if part["logprobs"] for entry in part["logprobs"][key]] == logprobs[key]
    scored = ask("/v1/completions", echo=True, logprobs=1, max_tokens=0).json
    assert scored["choices"][0]["text"] == STORY.source and scored["usage"]["completion_tokens"] == 0
    assert scored["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(
        logprobs["token_logprobs"][1:-6], abs=1e-3
    )


def test_token_ids(ask: Ask, path: str) -> None:
    """Of the prompt and the answer, as the reference tokenized and made them; of the prompt in one chunk only."""
    whole = ask(path, return_token_ids=True).json
    choice = whole["choices"][0]
    prompt_ids = whole["prompt_token_ids"] if "chat" in path else choice["prompt_token_ids"]
    assert (prompt_ids, choice["token_ids"]) == (PROMPT_IDS[path], OUTPUT_IDS[path][:6])
    chunks = ask(path, return_token_ids=True, stream=True).chunks
    assert [token for part in pieces(chunks) for token in part.get("token_ids") or []] == choice["token_ids"]
    holders = chunks if "chat" in path else pieces(chunks)
    assert [holder.get("prompt_token_ids") for holder in holders] == [prompt_ids] + [None] * (len(holders) - 1)
    fields = {"logprobs": True, "top_logprobs": 0} if "chat" in path else {"logprobs": 0}
    logprobs = ask(path, **fields, return_tokens_as_token_ids=True).json["choices"][0]["logprobs"]
    names = [entry["token"] for entry in logprobs["content"]] if "chat" in path else logprobs["tokens"]
    assert names == [f"token_id:{token}" for token in choice["token_ids"]]


def test_messages_in_other_forms_are_the_same_prompt(ask: Ask) -> None:
    """Text parts, fields that nobody reads, a role of one's own; and several turns."""

    def prompt_ids(*messages: dict[str, Any], **fields: object) -> list[int]:
        reply = ask("/v1/chat/completions", messages=messages, max_tokens=1, return_token_ids=True, **fields)
        assert reply.status == 200, reply.text
        ids: list[int] = reply.json["prompt_token_ids"]
        return ids

    parts = [{"type": "text", "text": "Hi there"}]
    for role in ("user", "critic"):
        plain = prompt_ids({"role": role, "content": "Hi there"})
        assert prompt_ids({"role": role, "content": parts}, no_such_field=1) == plain
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Who are you?"},
    ]
    assert prompt_ids(system, *turns) == prompt_ids({"role": "system", "content": "Be brief."}, *turns)
    reference = next(
        r for r in REFERENCES.values() if r.kind == "chat" and isinstance(r.source, list) and len(r.source) > 1
    )
    assert isinstance(reference.source, list)
    assert prompt_ids(*reference.source) == reference.prompt_ids


def test_no_log_probability_is_below_minus_9999(ask: Ask) -> None:
    """Where a token is all that is allowed, the others' is minus infinity, which JSON does not have."""
    answer = ask(
        "/v1/completions", logprobs=5, allowed_token_ids=[300, 301], logprobs_mode="processed_logprobs", temperature=1
    ).json
    tops = answer["choices"][0]["logprobs"]["top_logprobs"]
    assert len(tops) == 6
    for top in tops:
        assert all(-9999 <= logprob <= 0 for logprob in top.values())
        assert sum(map(math.exp, top.values())) == pytest.approx(1, abs=1e-4)
