"""Any script of deltas gives a well-formed stream whose text is the whole answer's."""

from __future__ import annotations

import asyncio

import msgspec
from fake_frontend import FakeFrontend, FakeStream, delta, events_of, finish
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import EngineFailure
from callboard.mailbox.messages.requests import TokenText
from callboard.server.answer_format import ChatFormat, CompletionFormat
from callboard.server.chunk_sequence import ChunkSequence, StreamState
from callboard.server.generation import collect
from callboard.server.metrics import ServerMetrics
from callboard.server.request_timing import RequestTiming

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
token_text = st.builds(
    TokenText,
    text,
    st.binary(max_size=4),
    st.floats(-50, 0),
    st.lists(st.tuples(text, st.binary(max_size=3), st.floats(-50, 0)), max_size=2),
)


@st.composite
def scripts(draw):
    """Deltas of one request: some without text, log-probabilities in all or none, any finish."""
    has_logprobs = draw(st.booleans())
    num_deltas = draw(st.integers(1, 6))
    deltas = []
    for index in range(num_deltas):
        tokens = draw(st.lists(token_text, max_size=3))
        is_last = index == num_deltas - 1
        end = None
        if is_last:
            end = finish(draw(st.sampled_from(["stop", "length", "abort"])), stop_reason=draw(st.none() | text))
        deltas.append(
            delta(
                draw(text),
                [draw(st.integers(0, 9)) for _ in tokens],
                end=end,
                logprobs=tokens if has_logprobs else None,
                prompt_token_ids=[4, 5] if index == 0 else None,
            )
        )
    return deltas


def make_format(kind, includes_usage):
    return kind("id-1", "m", 17, returns_token_ids=True, includes_usage=includes_usage)


def whole_answer(kind, deltas):
    async def run():
        stream = FakeStream("id-1", None, None, "", True)
        stream.push(*deltas)
        return await collect(stream, RequestTiming(ServerMetrics(FakeFrontend())))

    return msgspec.to_builtins(make_format(kind, False).whole(asyncio.run(run())))


def check_chunks(events, includes_usage):
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    chunks = events[:-1]
    if includes_usage:
        usage = chunks.pop()
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] == 8
    assert [chunk["choices"][0]["finish_reason"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    for chunk in chunks:
        assert (chunk["id"], chunk["created"], chunk["model"]) == ("id-1", 17, "m")
        assert chunk.get("usage", "absent") == (None if includes_usage else "absent")
    return chunks


def joined(lists):
    return [item for items in lists for item in items]


@settings(max_examples=80, deadline=None, database=None)
@given(scripts(), st.booleans())
def test_a_chat_stream_is_its_whole_answer_in_pieces(deltas, includes_usage):
    sequence = ChunkSequence(make_format(ChatFormat, includes_usage), includes_usage=includes_usage)
    chunks = check_chunks(events_of(b"".join(map(sequence.on_delta, deltas))), includes_usage)
    assert sequence.state is StreamState.ENDED
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert ["prompt_token_ids" in chunk for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    whole = whole_answer(ChatFormat, deltas)["choices"][0]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == whole["message"]["content"]
    assert joined(choice.get("token_ids", []) for choice in choices) == whole["token_ids"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    assert choices[-1]["stop_reason"] == whole["stop_reason"]
    if whole["logprobs"] is not None:
        parts = [choice["logprobs"]["content"] for choice in choices if choice["logprobs"] is not None]
        assert joined(parts) == whole["logprobs"]["content"]


@settings(max_examples=80, deadline=None, database=None)
@given(scripts(), st.booleans())
def test_a_completions_stream_is_its_whole_answer_in_pieces(deltas, includes_usage):
    sequence = ChunkSequence(make_format(CompletionFormat, includes_usage), includes_usage=includes_usage)
    chunks = check_chunks(events_of(b"".join(map(sequence.on_delta, deltas))), includes_usage)
    choices = [chunk["choices"][0] for chunk in chunks]
    whole = whole_answer(CompletionFormat, deltas)["choices"][0]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    if whole["logprobs"] is not None:
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert joined(choice["logprobs"][key] for choice in choices) == whole["logprobs"][key]
        offsets, tokens = whole["logprobs"]["text_offset"], whole["logprobs"]["tokens"]
        assert all(offsets[i + 1] - offsets[i] == len(tokens[i]) for i in range(len(tokens) - 1))


@settings(max_examples=60, deadline=None, database=None)
@given(scripts(), st.integers(0, 6))
def test_an_error_ends_a_stream_at_any_point(deltas, num_before):
    sequence = ChunkSequence(make_format(ChatFormat, False), includes_usage=False)
    body = b"".join(map(sequence.on_delta, deltas[:-1][:num_before]))
    events = events_of(body + sequence.on_error(EngineFailure("gone")) + sequence.on_error(EngineFailure("again")))
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    assert events[-2] == {"error": {"message": "gone", "type": "server_error", "param": None, "code": None}}
