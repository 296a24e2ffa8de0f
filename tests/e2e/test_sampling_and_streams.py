"""What a client reads: streams, stop strings, logprobs, seeds, lengths, cached tokens; what its leaving frees.

Expected values come from the reference file, which an independent implementation made in float32, or from a second way
to ask the same server.
"""

from __future__ import annotations

import itertools
import json
import math
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from callboard.bench.overlap import read_counter
from callboard.bench.reference import GAP_TOLERANCE
from callboard.bench.server_process import ServerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCES = [
    json.loads(line) for line in (ROOT / "tests" / "data" / "smollm2_reference.jsonl").read_text().splitlines()
]
BLOCK = 16
TOKENS = "callboard:generation_tokens_total"
HITS, QUERIES = "callboard:prefix_cache_hits_total", "callboard:prefix_cache_queries_total"

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def server(smol_server: ServerProcess) -> ServerProcess:
    return smol_server


@pytest.fixture(autouse=True)
def idle_afterwards(server: ServerProcess, wait_idle: Callable[[str], None]) -> Iterator[None]:
    yield
    wait_idle(server.url)


@pytest.fixture
def complete(server: ServerProcess, send: Ask) -> Ask:
    """`complete(prompt=..., ...)` -> Reply of /v1/completions, greedy unless told otherwise."""
    return lambda **body: send(f"{server.url}/v1/completions", {"temperature": 0, **body})


@pytest.fixture
def chat(server: ServerProcess, send: Ask) -> Ask:
    """`chat(...)` -> Reply of /v1/chat/completions for `hi`."""
    messages = [{"role": "user", "content": "hi"}]
    return lambda **body: send(f"{server.url}/v1/chat/completions", {"messages": messages, **body})


def at_once(ask: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`ask` for all items side by side, answers in their order."""
    with ThreadPoolExecutor(len(items)) as threads:
        return list(threads.map(ask, items))


def text_of(reply: Any) -> str:
    """Text of a completion, whole or streamed."""
    assert reply.status == 200, reply.text
    chunks = reply.chunks if reply.text.startswith("data:") else [reply.json]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def usage_of(reply: Any) -> dict[str, Any]:
    assert reply.status == 200, reply.text
    usage: dict[str, Any] = (reply.chunks[-1] if reply.text.startswith("data:") else reply.json)["usage"]
    return usage


# Streams


def test_usage_in_streams(chat: Ask) -> None:
    """Only where asked for, once, last, in a chunk without choices; elsewhere null."""
    whole = chat(max_tokens=8, temperature=0).json["usage"]
    for options, num_expected in ((None, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)):
        more = {} if options is None else {"stream_options": options}
        chunks = chat(max_tokens=8, temperature=0, stream=True, **more).chunks
        assert [chunk["choices"] == [] for chunk in chunks].count(True) == num_expected
        if num_expected:
            usage = chunks[-1]["usage"]
            assert chunks[-1]["choices"] == []
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (
                whole["prompt_tokens"],
                whole["completion_tokens"],
            )
            chunks = chunks[:-1]
        assert all(chunk.get("usage") is None for chunk in chunks)
    refused = chat(max_tokens=8, stream=False, stream_options={"include_usage": True})
    assert (refused.status, refused.error["param"]) == (400, "stream_options")


def test_chunks_have_every_key_and_one_identity(chat: Ask, complete: Ask) -> None:
    for reply, kind in (
        (chat(max_tokens=5, stream=True), "chat.completion.chunk"),
        (complete(prompt="hi", max_tokens=5, stream=True), "text_completion"),
    ):
        chunks = reply.chunks
        assert {chunk["object"] for chunk in chunks} == {kind}
        for key in ("id", "created", "model"):
            assert len({chunk[key] for chunk in chunks}) == 1
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
        assert len(reasons) == len(chunks)
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        assert reasons[-1] in ("stop", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_texts_are_the_references(complete: Ask, stream: bool) -> None:
    """Spaces at token borders, the first one included; characters of several tokens whole."""
    certain = [r for r in REFERENCES if r["min_gap"] >= GAP_TOLERANCE and r["eos_at"] is None and r["prompt_len"] < 99]
    certain = certain[stream::2]
    assert len(certain) >= 3
    replies = at_once(
        lambda r: complete(prompt=r["prompt_ids"], max_tokens=64, stream=stream, ignore_eos=True), certain
    )
    for reference, reply in zip(certain, replies, strict=True):
        assert text_of(reply) == reference["output_text"], reference["name"]


def test_prompts_in_other_forms_give_the_same(complete: Ask) -> None:
    reference = next(r for r in REFERENCES if r["name"] == "raw-story")
    prompts = (reference["source"], [reference["source"]], reference["prompt_ids"], [reference["prompt_ids"]])
    texts = {text_of(complete(prompt=prompt, max_tokens=16)) for prompt in prompts}
    assert texts == {text_of(complete(prompt=reference["source"], max_tokens=16, stream=True))}
    assert reference["output_text"].startswith(texts.pop())


# Ends


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_is_exact(complete: Ask, stream: bool) -> None:
    counts = [1, 2, 3, 7, 16, 17]
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    replies = at_once(
        lambda n: complete(prompt=[n, 5], max_tokens=n, ignore_eos=True, return_token_ids=True, **options), counts
    )
    for count, reply in zip(counts, replies, strict=True):
        assert usage_of(reply)["completion_tokens"] == count
        answers = reply.chunks if stream else [reply.json]
        ids = [i for answer in answers for choice in answer["choices"] for i in choice["token_ids"]]
        assert len(ids) == count


# Log-probabilities


def test_logprobs_are_the_references(complete: Ask) -> None:
    """The five most likely tokens of the first eight positions, up to a near-tie, within 1e-2."""
    references = [r for r in REFERENCES if r["prompt_len"] < 200]
    replies = at_once(
        lambda r: complete(prompt=r["prompt_ids"], max_tokens=8, logprobs=5, ignore_eos=True, return_token_ids=True),
        references,
    )
    num_compared = 0
    for reference, reply in zip(references, replies, strict=True):
        choice = reply.json["choices"][0]
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 8
        for position, expected in enumerate(reference["top5_first8"]):
            if reference["top2_gaps"][position] < GAP_TOLERANCE:
                break
            where = (reference["name"], position)
            assert choice["token_ids"][position] == expected[0][0], where
            assert logprobs["token_logprobs"][position] == pytest.approx(expected[0][1], abs=1e-2), where
            got = sorted(logprobs["top_logprobs"][position].values(), reverse=True)
            if len(got) == 5:  # tokens that are parts of characters may share a text, and then a key
                assert got == pytest.approx([logprob for _, logprob, _ in expected], abs=1e-2), where
            num_compared += 1
    assert num_compared > 100


def test_logprobs_of_chat(chat: Ask) -> None:
    reply = chat(max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    entries = reply.json["choices"][0]["logprobs"]["content"]
    assert len(entries) == reply.json["usage"]["completion_tokens"]
    for entry in entries:
        tops = entry["top_logprobs"]
        assert len(tops) == 3 and tops[0]["token"] == entry["token"] and tops[0]["logprob"] == entry["logprob"] <= 0
        assert [top["logprob"] for top in tops] == sorted((top["logprob"] for top in tops), reverse=True)
        assert sum(math.exp(top["logprob"]) for top in tops) <= 1 + 1e-4
        assert bytes(entry["bytes"]).decode() == entry["token"]
    assert "".join(entry["token"] for entry in entries) == reply.json["choices"][0]["message"]["content"]
    chunks = chat(max_tokens=6, temperature=0, logprobs=True, top_logprobs=3, stream=True).chunks
    lists = [choice["logprobs"]["content"] for c in chunks for choice in c["choices"] if choice["logprobs"]]
    streamed = list(itertools.chain.from_iterable(lists))
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


def test_which_logprobs_fields_need_which(chat: Ask) -> None:
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        reply = chat(max_tokens=2, **fields)
        assert [entry["top_logprobs"] for entry in reply.json["choices"][0]["logprobs"]["content"]] == [[], []]
    for fields in ({"top_logprobs": 2}, {"logprobs": False, "top_logprobs": 2}):
        assert chat(max_tokens=2, **fields).error["param"] == "top_logprobs"


def test_text_offsets(complete: Ask) -> None:
    """Also where text is held back for a stop string that does not come."""
    body = {"prompt": "Hi", "max_tokens": 12, "logprobs": 0, "stop": ["\n\n\n"]}
    whole = complete(**body).json["choices"][0]["logprobs"]
    streamed = [c["choices"][0]["logprobs"] for c in complete(**body, stream=True).chunks]
    offsets = [offset for logprobs in streamed if logprobs for offset in logprobs["text_offset"]]
    assert offsets == whole["text_offset"]
    lengths = [len(token) for token in whole["tokens"]]
    assert offsets == [sum(lengths[:i]) for i in range(len(lengths))]


# Sampling


def test_the_seed_fixes_the_text(complete: Ask) -> None:
    """Alone, in a batch of others, streamed; another seed gives another text."""

    def ask(seed: int, stream: bool = False) -> str:
        return text_of(complete(prompt="Once", max_tokens=16, temperature=1, seed=seed, stream=stream, ignore_eos=True))

    seeds = [1, 2, 3, 4, -1, 2**63 - 1]
    alone = [ask(seed) for seed in seeds]
    assert len(set(alone)) == len(seeds)
    assert at_once(ask, seeds) == alone
    assert ask(1, stream=True) == alone[0]


def test_without_a_seed_answers_differ(complete: Ask) -> None:
    texts = at_once(lambda _: text_of(complete(prompt="Once", max_tokens=16, temperature=1)), range(3))
    assert len(set(texts)) == 3


# A client that leaves


def leave(server: ServerProcess, body: dict[str, object], until: bytes) -> None:
    """Send a request and close the connection once `until` has come."""
    address = urlsplit(server.url)
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n".encode()
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head + payload)
        seen = b""
        while until not in seen:
            piece = connection.recv(65_536)
            assert piece, seen
            seen += piece


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_what_its_request_held(
    server: ServerProcess, complete: Ask, wait_idle: Callable[[str], None], stream: bool
) -> None:
    max_tokens = 8_000
    before = read_counter(server.url, TOKENS)
    body = {"prompt": "a", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    if stream:
        leave(server, body, until=b"data: ")
    else:
        address = urlsplit(server.url)
        payload = json.dumps(body).encode()
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(payload))
            connection.sendall(payload)
            while read_counter(server.url, TOKENS) == before:
                pass
    wait_idle(server.url)
    generated = read_counter(server.url, TOKENS)
    assert generated - before < max_tokens / 2
    assert usage_of(complete(prompt="b", max_tokens=3, ignore_eos=True))["completion_tokens"] == 3
    wait_idle(server.url)
    assert read_counter(server.url, TOKENS) - generated <= 3 + 3, "nothing but the last request, and its wasted rows"


# Cached tokens


def test_cached_tokens_in_usage_and_metrics(server: ServerProcess, complete: Ask) -> None:
    """Cold, again, with its fourth block changed, and by another tenant; whole and streamed."""
    prompt = [2000 + i for i in range(10 * BLOCK)]
    changed = [*prompt[: 3 * BLOCK], 7, *prompt[3 * BLOCK + 1 :]]
    cases = ((prompt, "one", 0), (prompt, "one", 9 * BLOCK), (changed, "one", 3 * BLOCK), (prompt, "two", 0))
    for stream, (ids, tenant, expected) in itertools.product((False, True), cases):
        hits, queries = read_counter(server.url, HITS), read_counter(server.url, QUERIES)
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        usage = usage_of(complete(prompt=ids, max_tokens=1, cache_salt=f"{tenant} {stream}", **options))
        assert usage["prompt_tokens"] == len(ids)
        assert usage["prompt_tokens_details"]["cached_tokens"] == expected
        assert read_counter(server.url, HITS) - hits == expected
        assert read_counter(server.url, QUERIES) - queries == len(ids)
