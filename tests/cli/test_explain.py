"""`callboard explain`: the lines of a request, and what it says when there is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from callboard.cli.explain import explanation_lines, ledger_of
from callboard.cli.main import app
from callboard.client import ChoiceExplanation, Preemption, RequestExplanation, WaitingSeconds
from callboard.mailbox.messages.requests import PreemptionRecord, WaitTime

CHOICE = ChoiceExplanation(
    index=1, state="preempted", waits_for="blocks", prompt_tokens=2050, completion_tokens=7, cached_tokens=512,
    receive_s=0.002, tokenize_s=0.01, waiting_s=WaitingSeconds(blocks=0.5), prefill_s=0.25, decode_s=0.24,
    deliver_s=0.008, total_s=1.01, chunks=(512, 2), preemptions=(Preemption(12, "blocks", 2056),),
    recomputed_tokens=1544, num_chunks=2, num_preemptions=4,
)  # fmt: skip
TOLD = RequestExplanation(
    id="cmpl-1",
    x_request_id="mine",
    state="answering",
    total_s=1.01,
    write_s=0.003,
    choices=[CHOICE],
    choices_left_out=1200,
)
ANSWER = {"id": "cmpl-1", "state": "ended", "total_s": 0.5, "choices": [{"index": 0, "state": "\x1b[31mred"}]}


def test_the_schedulers_ledger_is_had_again() -> None:
    ledger = ledger_of(CHOICE)
    assert (ledger.queued_ns - ledger.arrival_ns, ledger.prefill_ns, ledger.decode_ns) == (
        10_000_000, 250_000_000, 240_000_000,
    )  # fmt: skip
    assert ledger.waiting == WaitTime(blocks_ns=500_000_000)
    assert (ledger.choice, ledger.state, ledger.waits_for) == (1, "preempted", "blocks")
    assert ledger.preemptions == (PreemptionRecord(12, "blocks", 2056),) and ledger.chunks == (512, 2)
    assert (ledger.num_chunks, ledger.num_preemptions) == (2, 4)


def test_every_part_of_the_time_is_on_the_screen() -> None:
    text = "\n".join(explanation_lines(TOLD))
    for shown in (
        "cmpl-1: answering, 1.010 s (X-Request-Id mine)", "3.0 ms of them waiting for the client", "10.0 ms",
        "500.0 ms",
        "250.0 ms", "240.0 ms", "50.0%", "reading the request", "2.0 ms", "to the client", "8.0 ms", "step 12 (blocks)",
        "preempted 3 times more", "1,200 choices more",
        "2,050 prompt tokens, 512", "1,544 tokens computed more than once", "waits for blocks",
    ):  # fmt: skip
        assert shown in text, f"{shown}\n{text}"
    assert "grammar" not in text, "what it did not wait for is left out"


class Handler(BaseHTTPRequestHandler):
    """Knows `cmpl-1`, for the key `secret` or for nobody's."""

    def do_GET(self) -> None:
        key = self.headers.get("Authorization")
        is_known = self.path == "/v1/requests/cmpl-1" and key in (None, "Bearer secret")
        error = {
            "error": {"message": "no request is known", "type": "invalid_request_error", "param": None, "code": "x"}
        }
        body = json.dumps(ANSWER if is_known else error).encode()
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *words])
    return result.exit_code, result.output


def test_it_asks_the_server_and_shows_no_control_characters(url: str, tmp_path: Path) -> None:
    status, output = run("cmpl-1", "--url", url)
    assert status == 0 and "cmpl-1: ended" in output and "\x1b" not in output and "\\x1b[31mred" in output
    (tmp_path / "key").write_text(" secret team\n")
    assert run("cmpl-1", "--url", url, "--api-key-file", str(tmp_path / "key")) == (0, output)


def test_what_goes_wrong_is_a_line_and_a_status(url: str, tmp_path: Path) -> None:
    assert run("cmpl-2", "--url", url) == (1, "no request is known\n")
    status, output = run("cmpl-1", "--url", "http://127.0.0.1:1")
    assert status == 1 and "127.0.0.1:1" in output and "Traceback" not in output
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"secret\xff")
    for name, says in (("empty", "holds no key"), ("binary", "not UTF-8"), ("none", "No such file")):
        status, output = run("cmpl-1", "--url", url, "--api-key-file", str(tmp_path / name))
        assert status == 1 and says in output and "secret" not in output and "Traceback" not in output
