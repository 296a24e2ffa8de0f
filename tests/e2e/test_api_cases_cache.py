"""Reported faults of prefix cache, chunks and preemption, through HTTP: P02, P04, P05, C02, C04, C06, T04.

What is right comes from a second server without a prefix cache and with room for all, or is a count.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.api import (
    ENDPOINTS,
    LETTERS_BLOCKS,
    LETTERS_LENGTH,
    LETTERS_STEP,
    STREAM,
    Api,
    Choice,
    at_once,
    choices_of,
    usage_of,
)
from callboard.tests.e2e.conftest import Send

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("letters_idle")]

BLOCK = 16


@pytest.fixture(scope="module")
def plain(null_model: Path, send: Send) -> Iterator[Api]:
    """The same model, with whole prompts in a step, room for everything, and no prefix cache."""
    settings = (
        "process.worker.threads=1", "kv_cache.prefix_caching=false", "kv_cache.num_blocks=1024",
        f"model.max_model_len={LETTERS_LENGTH}", "scheduler.max_num_batched_tokens=1024", "scheduler.pipeline_depth=1",
    )  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    with ServerProcess(str(null_model), "--dtype", "float32", *words) as server:
        yield Api(server, send)


def ids(draw: random.Random, num_tokens: int) -> list[int]:
    return [draw.randrange(1, 900) for _ in range(num_tokens)]


def cached(reply: Any) -> int:
    number: int = usage_of(reply)["prompt_tokens_details"]["cached_tokens"]
    return number


def check_equal(got: Choice, expected: Choice) -> None:
    """Tokens, text and log-probabilities, those of the prompt with them."""
    assert (got.token_ids, got.text, got.tokens) == (expected.token_ids, expected.text, expected.tokens)
    assert [p is None for p in got.logprobs] == [p is None for p in expected.logprobs]
    numbers = [[p for p in choice.logprobs if p is not None] for choice in (got, expected)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-3)


# P02: a prompt that is cached whole


@pytest.mark.parametrize("num_tokens", [k * BLOCK + d for k in (1, 2, 5) for d in (-1, 0, 1)])
def test_a_repeat_computes_at_least_one_token_of_each_choice(letters: Api, plain: Api, num_tokens: int) -> None:
    """Again, twice in one request, with two choices, streamed; with and without log-probabilities."""
    prompt = ids(random.Random(num_tokens), num_tokens)
    body = {"max_tokens": 3, "ignore_eos": True, "return_token_ids": True}
    (expected,) = plain.choices("completions", prompt, logprobs=5, **body)
    (bare,) = plain.choices("completions", prompt, **body)
    most = (num_tokens - 1) // BLOCK * BLOCK
    salt = f"p02 {num_tokens}"
    for index, fields in enumerate(({}, {}, {"n": 2}, STREAM, {"n": 2, **STREAM})):
        for logprobs, right in ((5, expected), (None, bare)):
            reply = letters.ask("completions", prompt, logprobs=logprobs, cache_salt=salt, **body, **fields)
            for choice in choices_of(reply):
                check_equal(choice, right)
            assert cached(reply) == (0 if index == 0 and logprobs else most) < num_tokens
    twice = letters.ask("completions", [prompt, prompt], logprobs=5, cache_salt=salt, **body)
    for choice in choices_of(twice):
        check_equal(choice, expected)
    assert cached(twice) == 2 * most


# P04: blocks that are looked up, waited for, and taken by others


@pytest.mark.parametrize("rounds", [6, pytest.param(50, marks=pytest.mark.nightly)])
def test_requests_with_a_warm_prefix_behind_fillers(letters: Api, plain: Api, rounds: int) -> None:
    draw = random.Random(rounds)
    prefix = ids(draw, 4 * BLOCK)
    body = {"max_tokens": 5, "ignore_eos": True, "return_token_ids": True}
    letters.ask("completions", prefix, max_tokens=1)
    num_cached = 0
    for _ in range(rounds):
        fillers = [ids(draw, draw.randint(4, 7) * BLOCK) for _ in range(6)]
        late = [[*prefix, *ids(draw, draw.choice((1, 16)))] for _ in range(3)]
        prompts = [late[0], *fillers, *late[1:]]
        replies = at_once(lambda prompt: letters.ask("completions", prompt, **body), prompts)
        replies.append(letters.ask("completions", [*prompts], **body))
        expected = plain.choices("completions", [*prompts], **body)
        num_cached += sum(cached(reply) > 0 for reply in replies)
        for got, right in zip([c for r in replies for c in choices_of(r)], [*expected, *expected], strict=True):
            assert got.token_ids == right.token_ids
    assert num_cached >= rounds


# P05: log-probabilities of a prompt that is cached


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_log_probabilities_of_a_cached_prompt(letters: Api, plain: Api, max_tokens: int) -> None:
    """Of several steps; as echo and as prompt_logprobs, of several choices and prompts, whole and streamed."""
    prompts = [ids(random.Random(length), length) for length in (3 * BLOCK + 5, 3 * BLOCK, LETTERS_STEP + BLOCK, 1)]
    body = {"max_tokens": max_tokens, "echo": True, "logprobs": 1, "prompt_logprobs": 1}
    expected = plain.ask("completions", prompts, **body)
    rights, entries = choices_of(expected), [raw["prompt_logprobs"] for raw in expected.json["choices"]]
    for prompt, right, entry in zip(prompts, rights, entries, strict=True):
        assert len(right.logprobs) == len(prompt) + max_tokens and len(entry) == len(prompt)
        assert right.logprobs[0] is None and entry[0] is None
        assert all(p is not None and p <= 0 for p in right.logprobs[1:])
    letters.ask("completions", prompts, max_tokens=1)
    for index, (fields, stream) in enumerate(itertools.product(({}, {"n": 2}), ({}, {}, STREAM))):
        reply = letters.ask("completions", prompts, **body, **fields, **stream)
        n = fields.get("n", 1)
        for number, choice in enumerate(choices_of(reply)):
            check_equal(choice, rights[number // n])
        parts = reply.chunks if stream else [reply.json]
        raws = {
            raw["index"]: raw["prompt_logprobs"]
            for part in parts
            for raw in part["choices"]
            if raw.get("prompt_logprobs") is not None
        }
        assert len(raws) == n * len(prompts), index
        for number, listed in raws.items():
            right = entries[number // n]
            for got, wanted in zip(listed[1:], right[1:], strict=True):
                assert got.keys() == wanted.keys()
                for token, about in got.items():
                    assert about["logprob"] == pytest.approx(wanted[token]["logprob"], abs=1e-3)
    assert usage_of(reply)["completion_tokens"] == max_tokens * 2 * len(prompts)


# C02: chunks of a prompt


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("n", [1, 2])
def test_chunks_of_a_prompt_yield_no_token(letters: Api, endpoint: str, n: int) -> None:
    """A prompt of six steps: three tokens come of each choice, and one time to first token is counted."""
    draw = random.Random(n)
    text = "".join(draw.choices("QWERTYUIOP", k=6 * LETTERS_STEP - 20))
    logprobs = {"logprobs": True} if endpoint == "chat" else {"logprobs": 0}
    before = letters.counter("time_to_first_token_seconds_count")
    steps = letters.counter("steps_total")
    reply = letters.ask(
        endpoint, text, max_tokens=3, ignore_eos=True, n=n, return_token_ids=True, cache_salt=f"c02 {n}",
        **logprobs, **STREAM,
    )  # fmt: skip
    choices = choices_of(reply)
    assert usage_of(reply)["completion_tokens"] == 3 * n and usage_of(reply)["prompt_tokens"] > 5 * LETTERS_STEP
    for choice in choices:
        assert len(choice.token_ids) == len(choice.logprobs) == 3
        assert all(token > 0 for token in choice.token_ids) and all(choice.tokens)
    assert letters.counter("time_to_first_token_seconds_count") == before + 1
    assert letters.counter("steps_total") >= steps + 6 + 2


# C04: preemption


@pytest.mark.parametrize("stream", [pytest.param({}, marks=pytest.mark.nightly), STREAM], ids=["whole", "stream"])
def test_requests_that_do_not_fit_together_are_preempted_seldom(
    letters: Api, plain: Api, stream: dict[str, Any]
) -> None:
    """Four prompts of a third of the pool, 200 tokens out; one request of four prompts, and then four requests."""
    draw = random.Random(bool(stream))
    pool = LETTERS_BLOCKS * BLOCK
    prompts = [ids(draw, pool // 3) for _ in range(4)]
    body = {"max_tokens": 200, "ignore_eos": True, "return_token_ids": True, **stream}
    expected = plain.choices("completions", prompts, **body)
    preemptions, computed = letters.counter("num_preemptions_total"), letters.counter("iteration_tokens_total_sum")
    together = letters.choices("completions", prompts, **body)
    apart = at_once(lambda prompt: letters.choices("completions", prompt, **body)[0], prompts)
    assert [c.token_ids for c in together] == [c.token_ids for c in apart] == [c.token_ids for c in expected]
    assert all(len(choice.token_ids) == 200 and choice.finish_reason == "length" for choice in together)
    assert 0 < letters.counter("num_preemptions_total") - preemptions <= 3 * 8
    prefilled = letters.counter("iteration_tokens_total_sum") - computed - 8 * 199
    assert prefilled < 4 * 2 * sum(map(len, prompts))


# C06: a long prompt beside streams


def test_streams_go_on_while_a_long_prompt_is_computed(letters: Api) -> None:
    """Each step of the prompt leaves room for the rows that decode: they get as many tokens as the prompt has steps."""
    draw = random.Random(6)
    long = ids(draw, LETTERS_LENGTH - 8)
    num_steps = len(long) // LETTERS_STEP
    moments: list[float] = []

    def decode(number: int) -> Choice:
        return letters.choices("completions", [number, 7], max_tokens=60, ignore_eos=True, **STREAM)[0]

    def prefill() -> None:
        while not letters.counter("num_requests_running"):
            pass
        before = letters.counter("steps_total"), letters.counter("generation_tokens_total")
        assert letters.ask("completions", long, max_tokens=1).status == 200
        after = letters.counter("steps_total"), letters.counter("generation_tokens_total")
        moments.extend(late - early for early, late in zip(before, after, strict=True))

    thread = threading.Thread(target=prefill)
    thread.start()
    answers = at_once(decode, range(1, 5))
    thread.join()
    assert all(answer.finish_reason == "length" for answer in answers)
    steps, tokens = moments
    assert steps >= num_steps and tokens >= num_steps


# T04: cached tokens


@pytest.mark.parametrize("stream", [{}, STREAM], ids=["whole", "stream"])
def test_cached_tokens(letters: Api, stream: dict[str, Any]) -> None:
    """Cold, again, with the fourth block changed, with n, as two prompts, and in chat; the counters move alike."""
    prompt = ids(random.Random(40 + bool(stream)), 10 * BLOCK)
    changed = [*prompt[: 3 * BLOCK], 7, *prompt[3 * BLOCK + 1 :]]
    cases: list[tuple[Any, dict[str, Any], int, int]] = [
        (prompt, {}, 0, 1),
        (prompt, {}, 9 * BLOCK, 1),
        (changed, {}, 3 * BLOCK, 1),
        (prompt, {"n": 2}, 9 * BLOCK, 2),
        ([prompt, changed], {}, 18 * BLOCK, 1),
        ([*prompt, 5], {"n": 2}, 10 * BLOCK, 2),
    ]
    for asked, fields, expected, n in cases:
        before = letters.counter("prefix_cache_queries_total"), letters.counter("prefix_cache_hits_total")
        usage = usage_of(letters.ask("completions", asked, max_tokens=1, ignore_eos=True, **fields, **stream))
        num_tokens = sum(map(len, asked)) if isinstance(asked[0], list) else len(asked)
        assert usage["prompt_tokens"] == num_tokens
        assert usage["prompt_tokens_details"]["cached_tokens"] == expected
        assert letters.counter("prefix_cache_queries_total") - before[0] == n * num_tokens
        assert letters.counter("prefix_cache_hits_total") - before[1] == n * expected
    text = "W" * (6 * BLOCK)
    first, second = (letters.ask("chat", text, max_tokens=1, cache_salt=str(stream), **stream) for _ in range(2))
    assert (cached(first), cached(second)) == (0, (usage_of(second)["prompt_tokens"] - 1) // BLOCK * BLOCK)
