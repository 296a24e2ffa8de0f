"""How records stand in a file: length, CRC-32, payload; so that a file is readable up to its last whole record."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import ConfigError
from .records import VERSION, Record

_MAGIC = b"CBJRNL"
_PREFIX = struct.Struct("<6sH")
_FRAME = struct.Struct("<II")
PREFIX = _PREFIX.pack(_MAGIC, VERSION)
FRAME_BYTES = _FRAME.size

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Record)


def frame(record: Record) -> bytes:
    """The bytes of a record in its frame."""
    payload = _ENCODER.encode(record)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class Frames:
    """Reads the records of one file; `ending` says afterwards why it stopped, empty if the file is whole.

    Raises ConfigError for a file that is no journal, or one of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ending = ""
        try:
            self._file: BinaryIO = path.open("rb")
            prefix = self._file.read(_PREFIX.size)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}", advice="name a file of a journal") from error
        _check_prefix(path, prefix)

    def __iter__(self) -> Iterator[Record]:
        with self._file as file:
            begin = _PREFIX.size
            while head := file.read(FRAME_BYTES):
                if len(head) < FRAME_BYTES:
                    self.ending = f"cut off in the head of the record at byte {begin:,}"
                    return
                num_bytes, crc = _FRAME.unpack(head)
                payload = file.read(num_bytes)
                if len(payload) < num_bytes:
                    missing = num_bytes - len(payload)
                    self.ending = f"cut off: the record at byte {begin:,} lacks {missing:,} bytes"
                    return
                if zlib.crc32(payload) != crc:
                    self.ending = f"damaged: the record at byte {begin:,} does not match its checksum"
                    return
                try:
                    record = _DECODER.decode(payload)
                except msgspec.MsgspecError as error:
                    self.ending = f"the record at byte {begin:,} cannot be read: {error}"
                    return
                yield record
                begin += FRAME_BYTES + num_bytes


def _check_prefix(path: Path, prefix: bytes) -> None:
    if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
        advice = "the topology's [journal] path names its files, PATH.000001 on"
        raise ConfigError(f"{path} is no journal", advice=advice)
    version = _PREFIX.unpack(prefix)[1]
    if version != VERSION:
        raise ConfigError(
            f"{path} is a journal of version {version}, this Callboard reads version {VERSION}",
            advice="replay it with the version that wrote it",
        )
