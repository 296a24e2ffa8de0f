"""Server-sent events, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.client.sse import EventParser

STREAM = (
    ': waiting\n\ndata: {"a": "wörld"}\n\ndata:x\r\n\r\nevent: error\ndata: 1\ndata: 2\n\n: c\n\n\ndata: [DONE]\n\n'
)
EVENTS = ['{"a": "wörld"}', "x", "1\n2", "[DONE]"]


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.integers(0, len(STREAM.encode())), max_size=8))
def test_the_cuts_do_not_matter(cuts):
    data = STREAM.encode()
    borders = [0, *sorted(cuts), len(data)]
    parser = EventParser()
    events = []
    for start, end in pairwise(borders):
        events += parser.feed(data[start:end])
    assert [event.decode() for event in events] == EVENTS


def test_byte_by_byte_and_a_long_line():
    data = b"data: " + b"x" * 300_000 + b"\n\n"
    parser = EventParser()
    assert [event for at in range(0, len(data), 1000) for event in parser.feed(data[at : at + 1000])] == [
        b"x" * 300_000
    ]
    assert parser.feed(b"data: incomplete\n") == []
