"""The client of the HTTP peers, and llama-server's slots, against a server of the test's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.bench.peers.__main__ import find_peers
from callboard.bench.peers.http_load import completion_body
from callboard.bench.peers.peer import Peer, PeerFailed, PeerOptions

SERVER = f"""#!{sys.executable} -S
import http.server, json, sys
option = lambda name: sys.argv[sys.argv.index(name) + 1]
SLOT = int(option("-c")) // int(option("-np"))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = asked["max_tokens"]
        refused = len(asked["prompt"]) + tokens > SLOT
        self.send_response(400 if refused else 200)
        self.end_headers()
        if refused:
            self.wfile.write(b"a slot has %d tokens" % SLOT)
        elif asked.get("stream"):
            first = {{"error": {{"message": "out of luck"}}}} if tokens == 13 else {{"choices": [{{"text": ""}}]}}
            events = [first] + [{{"choices": [{{"text": "x"}}]}}] * tokens
            events.append({{"choices": [], "usage": {{"completion_tokens": tokens - (tokens == 7)}}}})
            for event in events if tokens != 5 else events[:1] + events[-1:]:
                self.wfile.write(b"data: %s\\n\\n" % json.dumps(event).encode())
            self.wfile.write(b"data: [DONE]\\n\\n")

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """llama-server as the adapter runs it, started."""
    binary, gguf = tmp_path / "llama-server", tmp_path / "Q4_0.gguf"
    binary.write_text(SERVER)
    binary.chmod(0o700)
    gguf.touch()
    options = PeerOptions(model="none", num_threads=2, llama_server=binary, llama_ggufs=[gguf])
    (peer,) = find_peers(["llama-server"], options)
    assert peer.name == "llama-server Q4_0"
    assert peer.start() > 0
    yield peer
    peer.stop()


def test_a_request_asks_for_a_greedy_stream_of_a_forced_length() -> None:
    assert json.loads(completion_body([5, 6], 9)) == {
        "prompt": [5, 6],
        "max_tokens": 9,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_streams_are_timed_and_counted(peer: Peer) -> None:
    streams = peer.run([[1, 2]] * 5, 2, 8)
    assert [stream.num_tokens for stream in streams] == [8] * 5
    assert all(0 <= stream.sent_s < stream.first_s <= stream.last_s for stream in streams)


@pytest.mark.parametrize(
    ("prompt_len", "output_len", "message"),
    [
        (2, 7, "an answer had 6 tokens, 7 were asked for"),
        (2, 13, "out of luck"),
        (2, 5, "an answer had no text"),
        (5000, 2, "status 400: a slot has 4096 tokens"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_fails(
    peer: Peer, prompt_len: int, output_len: int, message: str
) -> None:
    with pytest.raises(PeerFailed, match=message):
        peer.run([[1] * prompt_len], 1, output_len)
    assert len(peer.run([[1, 2]], 1, 8)) == 1, "the next point is none the worse"


def test_a_prompt_that_is_longer_than_a_slot_gets_a_server_with_a_longer_one(peer: Peer) -> None:
    memory = peer.memory()
    assert [stream.num_tokens for stream in peer.run([[1] * 2000] * 3, 1, 16)] == [16] * 3
    assert peer.memory().rss_bytes >= memory.rss_bytes > 0, "that of the server with many slots, as it was stopped"
    assert [stream.num_tokens for stream in peer.run([[1] * 128] * 3, 1, 16)] == [16] * 3
    peer.stop()
    assert peer.start() > 0, "in the next round"
