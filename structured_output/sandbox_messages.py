"""Messages between a process that checks constraints and its owner, over the process's standard input and output.

| message | sender  | bound                                      | when the peer dies                             |
|---------|---------|--------------------------------------------|------------------------------------------------|
| Setup   | owner   | once, first                                | the process ends with its standard input       |
| Check   | owner   | one for each `Ready`                       | the process ends with its standard input       |
| Ready   | process | after `Setup` and behind each `Check`      | another process is started                     |
| Checked | process | at most one for each `Check`               | the check is made again, by another process    |
| Ended   | process | at most one for each `Check`, last         | the check is made again, by another process    |

A frame is a 32-bit length, little-endian, and that many bytes of msgpack.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Literal

import msgspec

from ..mailbox.messages.grammar import Constraint
from .vocabulary import Vocabulary

HEAD = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True, array_like=True, tag=0):
    backend: Literal["llguidance", "xgrammar"]
    vocabulary: Vocabulary
    processor_s: float
    """Processor time of one check."""
    memory_bytes: int
    """Address space that checks may take, beyond what the process has when it is ready."""


class Check(msgspec.Struct, frozen=True, array_like=True, tag=1):
    constraint: Constraint


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=2):
    pid: int
    """Of the process that makes the next check."""


class Checked(msgspec.Struct, frozen=True, array_like=True, tag=3):
    refusal: str | None
    """A sentence for the client; None if the constraint can be had."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The process that made the check has ended with no good status. Behind a `Checked` it means nothing."""

    status: int
    """Exit status; of a signal its number, negative."""


ToSandbox = Setup | Check
FromSandbox = Ready | Checked | Ended


def frame(message: ToSandbox | FromSandbox) -> bytes:
    """Head and body."""
    body = msgspec.msgpack.encode(message)
    return HEAD.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame, and not a byte more where the stream has no buffer; None at the stream's end."""
    head = _read(stream, HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    body = _read(stream, size)
    return body if len(body) == size else None


def _read(stream: BinaryIO, size: int) -> bytes:
    """So many bytes, or what comes before the end."""
    parts = bytearray()
    while len(parts) < size and (part := stream.read(size - len(parts))):
        parts += part
    return bytes(parts)
