"""A warm process that forks one end of a board per request: `python -P board_forker.py SOCKET`.

Requests come over the socket as JSON, with the descriptors that the child shall have; the answer is a number: the
child's pid, or how it ended as `os.waitpid` reports it. A child is stopped or killed by itself, in front of the chosen
line among those that it executes of the board's own files during its round.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import sys
import zlib
from types import FrameType, TracebackType

import msgspec

from callboard.errors import CallboardError
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter, protocol, reader, writer

FILES = {protocol.__file__, reader.__file__, writer.__file__}
MAX_BODY_BYTES = 1 << 15
MAX_REQUEST_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1


class Fork(msgspec.Struct, tag=True):
    """Fork a child in `role`; `names` are those of the descriptors that come along.

    Beside the board's there are `report`, which takes its lines, and `go`, an eventfd that it waits for before its
    round. In front of line `strike_at` of the round (from 1; 0: none) it sends itself `signal_number`.
    """

    role: str
    layout: BoardLayout
    names: list[str]
    reader: int = 0
    seed: int = 0
    strike_at: int = 0
    signal_number: int = 0


class Wait(msgspec.Struct, tag=True):
    """Wait until the child ends or stops; answered with its status. A child that ended is reaped."""

    pid: int


def record_of(number: int, seed: int) -> bytes:
    """Record `number` of a stream: its number, a checksum, a body of random size and content."""
    random_source = random.Random(seed << 64 | number)
    body = random_source.randbytes(random_source.choice((0, 1, 63, 64, 1000, MAX_BODY_BYTES)))
    return number.to_bytes(8, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def verify(record: bytes, number: int) -> None:
    assert int.from_bytes(record[:8], "little") == number
    assert int.from_bytes(record[8:12], "little") == zlib.crc32(record[12:])


class Round:
    """The part of a child's life in which it may strike itself, line by line."""

    def __init__(self, fork: Fork, fds: dict[str, int]) -> None:
        self.strike_at, self.signal_number = fork.strike_at, fork.signal_number
        self.go = fds["go"]
        self.num_lines = 0

    def __enter__(self) -> Round:
        os.eventfd_read(self.go)
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.strike_at:
                os.kill(os.getpid(), self.signal_number)
        return self.trace


def publish_round(fork: Fork, fds: dict[str, int]) -> None:
    """Records 1 and 2 at once, then the round: record 3 and the end of the stream."""
    board = BoardWriter(fork.layout, fds)
    for number in (1, 2):
        board.publish_nowait(record_of(number, fork.seed))
    with Round(fork, fds):
        board.publish_nowait(record_of(3, fork.seed))
        board.close_stream()


def receive_round(fork: Fork, fds: dict[str, int]) -> None:
    """The round: two records. If it was stopped in it and goes on, all others follow."""
    board = BoardReader(fork.layout, fds, fork.reader)
    with Round(fork, fds) as struck:
        for _ in range(2):
            say(fds, board.receive().hex())
    if struck.num_lines >= struck.strike_at:
        report_all(board, fds)


def receive_all(fork: Fork, fds: dict[str, int]) -> None:
    report_all(BoardReader(fork.layout, fds, fork.reader), fds)


def report_all(board: BoardReader, fds: dict[str, int]) -> None:
    """Report every record as hexadecimal, then what ended the stream as `!<class of the error>`."""
    try:
        while True:
            say(fds, board.receive().hex())
    except CallboardError as error:
        say(fds, f"!{type(error).__name__}")


def write_on(fork: Fork, fds: dict[str, int]) -> None:
    """Publish numbered records until killed."""
    board = BoardWriter(fork.layout, fds)
    number = 1
    while True:
        board.publish(record_of(number, fork.seed), 600.0, lambda _: "reading")
        number += 1


def digest_all(fork: Fork, fds: dict[str, int]) -> None:
    """Verify every record; at the end report `<number of records> <checksum over all>`."""
    board = BoardReader(fork.layout, fds, fork.reader)
    number = digest = 0
    try:
        while True:
            record = board.receive()
            number += 1
            verify(record, number)
            digest = zlib.crc32(record, digest)
    except CallboardError as error:
        say(fds, f"{number} {digest} {type(error).__name__}")


ROLES = {role.__name__: role for role in (publish_round, receive_round, receive_all, write_on, digest_all)}


def say(fds: dict[str, int], line: str) -> None:
    os.write(fds["report"], f"{line}\n".encode())


def run_child(fork: Fork, fds: dict[str, int]) -> None:
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        ROLES[fork.role](fork, fds)
        status = 0
    except BaseException as error:
        say(fds, f"!{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def serve(sock: socket.socket) -> None:
    while True:
        request_bytes, descriptors, _, _ = socket.recv_fds(sock, MAX_REQUEST_BYTES, 64)
        if not request_bytes:
            return
        request = msgspec.json.decode(request_bytes, type=Fork | Wait)
        match request:
            case Wait(pid):
                answer = os.waitpid(pid, os.WUNTRACED)[1]
            case Fork():
                answer = os.fork()
                if answer == 0:
                    sock.close()
                    run_child(request, dict(zip(request.names, descriptors, strict=True)))
                for fd in descriptors:
                    os.close(fd)
        sock.send(str(answer).encode())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])))
