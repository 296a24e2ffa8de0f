"""Messages between a process that checks constraints and its owner, over the process's standard input and output.

| message | sender  | bound               | when the peer dies                                   |
|---------|---------|---------------------|------------------------------------------------------|
| Setup   | owner   | once, first         | the process ends with its standard input             |
| Check   | owner   | one at a time       | the process ends with its standard input             |
| Ready   | process | once, after `Setup` | another process is started                           |
| Checked | process | one a `Check`       | the constraint is refused, another process is started |

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
    pass


class Checked(msgspec.Struct, frozen=True, array_like=True, tag=3):
    refusal: str | None
    """A sentence for the client; None if the constraint can be had."""


ToSandbox = Setup | Check
FromSandbox = Ready | Checked


def frame(message: ToSandbox | FromSandbox) -> bytes:
    """Head and body."""
    body = msgspec.msgpack.encode(message)
    return HEAD.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame; None at the end of the stream."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    body = stream.read(size)
    return body if len(body) == size else None
