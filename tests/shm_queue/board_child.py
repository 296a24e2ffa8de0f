"""One end of a board in a process of its own: `python -P board_child.py ROLE LAYOUT FDS ARGUMENT`.

LAYOUT and FDS are JSON; the descriptors are inherited under the same numbers. Each record received is written to
standard output as one line of hexadecimal; what ended the reader is a last line `!<error's class name>`.
"""

from __future__ import annotations

import json
import sys

import msgspec

from callboard.errors import CallboardError
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter


def say(line: str) -> None:
    print(line, flush=True)


def read(layout: BoardLayout, fds: dict[str, int], reader: int) -> None:
    """Receive for ever."""
    board = BoardReader(layout, fds, reader)
    try:
        while True:
            say(board.receive().hex())
    except CallboardError as error:
        say(f"!{type(error).__name__}")


def write_on(layout: BoardLayout, fds: dict[str, int], _: int) -> None:
    """Publish records of one repeated byte as fast as the readers take them, until killed."""
    board = BoardWriter(layout, fds)
    index = 0
    while True:
        board.publish(bytes([index % 256]) * layout.slot_bytes, 60.0, lambda _reader: "reading")
        index += 1


ROLES = {"read": read, "write_on": write_on}

if __name__ == "__main__":
    role, layout_json, fds_json, argument = sys.argv[1:]
    ROLES[role](msgspec.json.decode(layout_json, type=BoardLayout), json.loads(fds_json), int(argument))
