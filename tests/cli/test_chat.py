"""`callboard chat` on a pseudo-terminal, as a person types."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
PIECE = b'data: {"id": "x", "choices": [{"delta": {"content": "Hello"}, "finish_reason": null}]}\n\n'
LAST = b'data: {"id": "x", "choices": [{"delta": {"content": "!"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


class Terminal:
    """A chat with the server at `url`; what it shows is read up to a text that it must show."""

    def __init__(self, url: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.execv(sys.executable, [sys.executable, "-P", "-m", "callboard.cli.main", "chat", "--url", url])

    def shows(self, text: bytes) -> None:
        seen = b""
        while text not in seen:
            try:
                seen += os.read(self.fd, 4096)
            except OSError:  # the other side is closed
                pytest.fail(f"the chat ended without {text!r}; it showed {seen!r}")

    def types(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def status(self) -> int:
        """Exit status, once it has ended."""
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def has_ended(self, timeout_s: float) -> bool:
        pidfd = os.pidfd_open(self.pid)
        try:
            return bool(select.select([pidfd], [], [], timeout_s)[0])
        finally:
            os.close(pidfd)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.status()
        os.close(self.fd)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def terminal(listener: socket.socket) -> Iterator[Terminal]:
    terminal = Terminal(f"http://127.0.0.1:{listener.getsockname()[1]}")
    terminal.shows(b"> ")
    yield terminal
    terminal.close()


def take_request(listener: socket.socket) -> tuple[socket.socket, bytes]:
    connection, _ = listener.accept()
    request = b""
    while not request.endswith(b"}"):
        request += connection.recv(65536)
    return connection, request


@pytest.mark.parametrize("keys", [b"\x03", b"\x04", b"\n"], ids=["ctrl-c", "ctrl-d", "empty line"])
def test_it_ends_at_the_prompt(terminal: Terminal, keys: bytes) -> None:
    """A Ctrl-C between the prompt and the read behind it is taken with the next key, as in any program in Python."""
    terminal.types(keys)
    while not terminal.has_ended(1.0):
        terminal.types(keys)
    assert terminal.status() == 0


def test_ctrl_c_aborts_the_answer_and_the_conversation_goes_on(terminal: Terminal, listener: socket.socket) -> None:
    terminal.types(b"hi\n")
    connection, _ = take_request(listener)
    with connection:
        connection.sendall(HEAD + PIECE)
        terminal.shows(b"Hello")
        terminal.types(b"\x03")
        assert connection.recv(1) == b""
    terminal.shows(b"> ")
    terminal.types(b"more\n")
    connection, request = take_request(listener)
    with connection:
        assert [part in request for part in (b'"hi"', b'"Hello"', b'"more"')] == [True] * 3
        connection.sendall(HEAD + LAST)
    terminal.shows(b"!\r\n> ")


def test_bytes_that_are_no_text_become_replacement_characters(terminal: Terminal, listener: socket.socket) -> None:
    terminal.types(b"a\xff\n")
    connection, request = take_request(listener)
    with connection:
        assert "a\ufffd".encode() in request


@pytest.mark.parametrize("url", ["foo bar", "http://127.0.0.1:99999"])
def test_a_url_that_is_none_is_one_line(url: str) -> None:
    terminal = Terminal(url)
    terminal.shows(b"> ")
    terminal.types(b"hi\n")
    terminal.shows(b"the base URL ")
    assert terminal.status() == 1
    terminal.close()
