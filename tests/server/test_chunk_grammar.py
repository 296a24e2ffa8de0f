"""Any script of deltas, of any number of choices, gives a well-formed stream whose text is the whole answer's."""

from __future__ import annotations

import asyncio
from itertools import groupby

import msgspec
import pytest
from fake_frontend import FakeFrontend, FakeStream, delta, events_of, finish
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import EngineFailure
from callboard.mailbox.messages.requests import PromptDetails, TokenText
from callboard.server.answer_format import CompletionFormat
from callboard.server.chat_format import ChatFormat
from callboard.server.chunk_sequence import ChunkSequence, StreamState
from callboard.server.generation_request import AnswerOptions
from callboard.server.metrics import ServerMetrics
from callboard.server.request_timing import RequestTiming
from callboard.server.whole_choices import collect

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
token_text = st.builds(
    TokenText,
    text,
    st.binary(max_size=4),
    st.floats(-50, 0),
    st.lists(st.tuples(text, st.binary(max_size=3), st.floats(-50, 0)), max_size=2),
)

PROMPT = PromptDetails([4, 5], "")


@st.composite
def choice_scripts(draw, choice, has_logprobs, prompt):
    """Deltas of one choice: some without text, log-probabilities in all or none, any finish."""
    num_deltas = draw(st.integers(1, 5))
    deltas = []
    for index in range(num_deltas):
        tokens = draw(st.lists(token_text, max_size=3))
        is_last = index == num_deltas - 1
        end = None
        if is_last:
            reason = draw(st.sampled_from(["stop", "length", "abort"]))
            end = finish(reason, choice + 1, cached_tokens=2 + choice, stop_reason=draw(st.none() | text))
        deltas.append(
            delta(
                draw(text),
                [draw(st.integers(0, 9)) for _ in tokens],
                end=end,
                choice=choice,
                logprobs=tokens if has_logprobs else None,
                prompt=prompt if index == 0 else None,
            )
        )
    return deltas


@st.composite
def scripts(draw):
    """(number of choices, deltas of all of them): each choice's in order, the choices mixed in any way."""
    num_choices = draw(st.integers(1, 4))
    return num_choices, draw(deltas_of(num_choices, draw(st.booleans())))


@st.composite
def deltas_of(draw, num_choices, has_logprobs, prompt=PROMPT):
    left = [draw(choice_scripts(choice, has_logprobs, prompt)) for choice in range(num_choices)]
    deltas = []
    while any(left):
        choice = draw(st.sampled_from([choice for choice, rest in enumerate(left) if rest]))
        deltas.append(left[choice].pop(0))
    return deltas


def make_format(kind, num_choices, includes_usage):
    options = AnswerOptions(num_choices=num_choices, returns_token_ids=True, includes_usage=includes_usage)
    return kind("id-1", "m", 17, options)


def make_sequence(kind, num_choices, includes_usage):
    return ChunkSequence(
        make_format(kind, num_choices, includes_usage), num_choices=num_choices, includes_usage=includes_usage
    )


def whole_of(answer_format, num_choices, deltas):
    async def run():
        stream = FakeStream("id-1", None, None, "", True, num_choices)
        stream.push(*deltas)
        return await collect(stream, num_choices, RequestTiming(ServerMetrics(FakeFrontend())))

    return msgspec.to_builtins(answer_format.whole(asyncio.run(run())))


def whole_answer(kind, num_choices, deltas):
    answer = whole_of(make_format(kind, num_choices, False), num_choices, deltas)
    assert [choice["index"] for choice in answer["choices"]] == list(range(num_choices))
    check_usage(answer["usage"], num_choices)
    return answer


def check_usage(usage, num_choices):
    """Five tokens of prompt, once; 1 + 2 + ... of output; the cache of the first choice."""
    assert usage == {
        "prompt_tokens": 5,
        "completion_tokens": num_choices * (num_choices + 1) // 2,
        "total_tokens": 5 + num_choices * (num_choices + 1) // 2,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def check_chunks(events, num_choices, includes_usage):
    """The chunks of each choice, by index."""
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    chunks = events[:-1]
    if includes_usage:
        usage = chunks.pop()
        assert usage["choices"] == []
        check_usage(usage["usage"], num_choices)
    for chunk in chunks:
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("id-1", 17, "m")
        assert chunk.get("usage", "absent") == (None if includes_usage else "absent")
        assert len(chunk["choices"]) == 1
    by_index = sorted((chunk["choices"][0] for chunk in chunks), key=lambda choice: choice["index"])
    choices = {index: list(group) for index, group in groupby(by_index, key=lambda choice: choice["index"])}
    assert list(choices) == list(range(num_choices))
    for parts in choices.values():
        assert [part["finish_reason"] is None for part in parts] == [True] * (len(parts) - 1) + [False]
    return choices


def joined(lists):
    return [item for items in lists for item in items]


@settings(max_examples=80, deadline=None, database=None)
@given(scripts(), st.booleans())
def test_a_chat_stream_is_its_whole_answer_in_pieces(script, includes_usage):
    num_choices, deltas = script
    sequence = make_sequence(ChatFormat, num_choices, includes_usage)
    events = events_of(b"".join(map(sequence.on_delta, deltas)))
    choices = check_chunks(events, num_choices, includes_usage)
    assert sequence.state is StreamState.ENDED
    answer = whole_answer(ChatFormat, num_choices, deltas)
    assert ["prompt_token_ids" in event for event in events[:-1]] == [True] + [False] * (len(events) - 2)
    assert answer["prompt_token_ids"] == events[0]["prompt_token_ids"]
    for whole, parts in zip(answer["choices"], choices.values(), strict=True):
        assert [part["delta"].get("role") for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        assert "".join(part["delta"].get("content", "") for part in parts) == whole["message"]["content"]
        assert joined(part.get("token_ids", []) for part in parts) == whole["token_ids"]
        assert parts[-1]["finish_reason"] == whole["finish_reason"]
        assert parts[-1]["stop_reason"] == whole["stop_reason"]
        if whole["logprobs"] is not None:
            pieces = [part["logprobs"]["content"] for part in parts if part["logprobs"] is not None]
            assert joined(pieces) == whole["logprobs"]["content"]


@settings(max_examples=80, deadline=None, database=None)
@given(scripts(), st.booleans())
def test_a_completions_stream_is_its_whole_answer_in_pieces(script, includes_usage):
    num_choices, deltas = script
    sequence = make_sequence(CompletionFormat, num_choices, includes_usage)
    events = events_of(b"".join(map(sequence.on_delta, deltas)))
    choices = check_chunks(events, num_choices, includes_usage)
    for whole, parts in zip(
        whole_answer(CompletionFormat, num_choices, deltas)["choices"], choices.values(), strict=True
    ):
        assert "".join(part["text"] for part in parts) == whole["text"]
        assert ["prompt_token_ids" in part for part in parts] == [True] + [False] * (len(parts) - 1)
        assert whole["prompt_token_ids"] == parts[0]["prompt_token_ids"]
        if whole["logprobs"] is not None:
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert joined(part["logprobs"][key] for part in parts) == whole["logprobs"][key]
            offsets, tokens = whole["logprobs"]["text_offset"], whole["logprobs"]["tokens"]
            assert all(offsets[i + 1] - offsets[i] == len(tokens[i]) for i in range(len(tokens) - 1))


@settings(max_examples=60, deadline=None, database=None)
@given(scripts(), st.integers(0, 12), st.booleans())
def test_an_error_ends_a_stream_at_any_point(script, num_before, is_delta):
    """One error event and [DONE], whether the engine failed or one choice did."""
    num_choices, deltas = script
    sequence = make_sequence(ChatFormat, num_choices, False)
    body = b"".join(map(sequence.on_delta, deltas[:-1][:num_before]))
    if is_delta:
        body += sequence.on_delta(delta(end=finish("error", message="gone"), choice=deltas[-1].choice))
    else:
        body += sequence.on_error(EngineFailure("gone"))
    events = events_of(body + sequence.on_error(EngineFailure("again")))
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    assert events[-2] == {"error": {"message": "gone", "type": "server_error", "param": None, "code": None}}
    assert ["error" in event for event in events[:-1]] == [False] * (len(events) - 2) + [True]


@settings(max_examples=40, deadline=None, database=None)
@given(scripts(), st.data())
def test_text_after_the_end_of_a_choice_is_refused(script, data):
    num_choices, deltas = script
    sequence = make_sequence(ChatFormat, num_choices, False)
    ended = []
    for each in deltas:
        sequence.on_delta(each)
        if each.finish is not None:
            ended.append(each.choice)
            with pytest.raises(EngineFailure):
                sequence.on_delta(delta("more", [1], choice=data.draw(st.sampled_from(ended))))


@settings(max_examples=30, deadline=None, database=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())
def test_echo_and_usage_of_several_prompts(data, num_prompts, n, has_logprobs, is_running):
    """The pieces are the whole; each prompt counts once; running counts end at those of the choice."""
    first, second = "é", "→x"
    tokens = [TokenText(second, second.encode(), -1.0, [("y", b"y", -0.5)])] if has_logprobs else None
    prompt = PromptDetails([4, 5], first + second, tokens)
    total = num_prompts * n
    deltas = data.draw(deltas_of(total, has_logprobs, prompt))
    options = AnswerOptions(
        num_choices=n, includes_usage=True, has_running_usage=is_running, echoes_prompt=True,
        echo_logprobs=0 if has_logprobs else None,
    )  # fmt: skip
    kind = CompletionFormat("id-1", "m", 17, options)
    sequence = ChunkSequence(kind, num_choices=total, includes_usage=True)
    events = events_of(b"".join(map(sequence.on_delta, deltas)))
    usage = events[-2]["usage"]
    assert usage["prompt_tokens"] == 5 * num_prompts
    assert usage["completion_tokens"] == total * (total + 1) // 2
    assert usage["prompt_tokens_details"] == {"cached_tokens": sum(2 + index * n for index in range(num_prompts))}
    whole = whole_of(CompletionFormat("id-1", "m", 17, options), total, deltas)
    assert whole["usage"] == usage
    for index, choice in enumerate(whole["choices"]):
        parts = [event for event in events[:-2] if event["choices"][0]["index"] == index]
        assert "".join(part["choices"][0]["text"] for part in parts) == choice["text"]
        assert choice["text"].startswith(first + second)
        counts = [part["usage"] for part in parts]
        if is_running:
            assert counts[-1] == {"prompt_tokens": 2, "completion_tokens": index + 1, "total_tokens": index + 3}
        else:
            assert counts == [None] * len(parts)
        if has_logprobs:
            pieces = [part["choices"][0]["logprobs"] for part in parts if part["choices"][0]["logprobs"] is not None]
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert joined(piece[key] for piece in pieces) == choice["logprobs"][key]
            assert choice["logprobs"]["tokens"][:2] == [first, second]
            assert choice["logprobs"]["token_logprobs"][:2] == [None, -1.0]
            assert choice["logprobs"]["top_logprobs"][:2] == [None, {second: -1.0}]
