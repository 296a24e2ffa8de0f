"""The process that renders chat templates, as its owner holds it: asked over a socket, ended by its limits, replaced.

| part     | layout, little-endian                                                    |
| -------- | ------------------------------------------------------------------------ |
| question | 64-bit length, that many bytes of JSON                                   |
| answer   | one byte that tells the kind, 64-bit length, that many bytes of UTF-8    |

Limits are the kernel's (ITIMER_PROF, RLIMIT_AS), set by the process on itself; see `template_process.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

_PROGRAM = Path(__file__).with_name("template_process.py")
_QUESTION_HEAD = struct.Struct("<Q")
_ANSWER_HEAD = struct.Struct("<cQ")
_MAX_BYTES_A_CHAR = 4


class Kind(enum.Enum):
    """What an answer is: the text, or why there is none."""

    TEXT = b"T"
    SYNTAX = b"S"
    """The template cannot be compiled."""
    FAILED = b"F"
    """The template raised an error on these messages, or made too long a text of them."""
    LIMIT = b"L"
    """More time or memory than there may be; the process has ended."""
    DIED = b"D"
    """The process ended, twice, and not of its limits."""


class Answer(msgspec.Struct, frozen=True):
    kind: Kind
    text: str
    """What was rendered, or the end of a sentence about the template."""


class RenderLimits(msgspec.Struct, frozen=True):
    """What one rendering, or one compilation, may take."""

    processor_s: float = 1.0
    memory_bytes: int = 1 << 30
    """Address space of the whole process, interpreter included."""
    output_chars: int = 1 << 25
    """Characters of the text: twice the bytes of the largest request body by default."""
    silence_s: float = 120.0
    """A process that does not run at all (stopped, or the machine starves) is ended after so long."""


class RenderProcess:
    """Starts the process when it is needed, again after it has died. Thread-safe: one question at a time."""

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self.limits = limits or RenderLimits()
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def start(self) -> None:
        """Start it now, without waiting for it: it gets ready while the caller does something else.

        Where it cannot be started, the first question says so.
        """
        with self._lock, contextlib.suppress(OSError):
            self._channel()

    def ask(self, question: bytes) -> Answer:
        """The answer; a process that had died before, or dies of something else than its limits, is replaced once."""
        with self._lock:
            cause = ""
            for _ in range(2):
                try:
                    return self._exchange(self._channel(), question)
                except TimeoutError:
                    self._stop()
                    return Answer(Kind.LIMIT, f"there was no answer within {self.limits.silence_s:g} s")
                except OSError as error:
                    status = self._stop()
                    cause = str(error) if status is None else f"exit status {status}"
                    if status == -signal.SIGPROF:
                        seconds = f"{self.limits.processor_s:g} s"
                        return Answer(Kind.LIMIT, f"it takes more than {seconds} of processor time")
            return Answer(Kind.DIED, f"the process that renders it ended: {cause}")

    def close(self) -> None:
        """End the process. A later question starts another."""
        with self._lock:
            self._stop()

    def _channel(self) -> socket.socket:
        if self._running is None:
            ours, theirs = socket.socketpair()
            ours.settimeout(self.limits.silence_s)
            limits = (self.limits.processor_s, self.limits.memory_bytes, self.limits.output_chars)
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", str(_PROGRAM), *map(str, limits)],
                    stdin=theirs.fileno(),
                    stdout=2,  # standard output may carry the supervisor's ready line
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._running = process, ours
        return self._running[1]

    def _exchange(self, channel: socket.socket, question: bytes) -> Answer:
        """Raises OSError when the process dies, TimeoutError when it stands still."""
        channel.sendall(_QUESTION_HEAD.pack(len(question)) + question)
        with channel.makefile("rb") as answers:
            kind, num_bytes = _ANSWER_HEAD.unpack(_read(answers.read(_ANSWER_HEAD.size), _ANSWER_HEAD.size))
            if num_bytes > self.limits.output_chars * _MAX_BYTES_A_CHAR:
                raise ConnectionError(f"an answer of {num_bytes:,} bytes")
            text = _read(answers.read(num_bytes), num_bytes)
        return Answer(Kind(kind), text.decode("utf-8", "surrogatepass"))

    def _stop(self) -> int | None:
        """Kill what still runs; its exit status, None without a process."""
        if self._running is None:
            return None
        process, channel = self._running
        self._running = None
        channel.close()
        process.kill()
        return process.wait()


def _read(data: bytes, num_bytes: int) -> bytes:
    if len(data) < num_bytes:
        raise ConnectionError("the answer broke off")
    return data


shared = RenderProcess()
"""This process's own: all its templates are rendered there."""
atexit.register(shared.close)
