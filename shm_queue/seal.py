"""The end of a board whose writer is dead: every reader gets the same records, and nobody waits for more."""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import protocol
from .layout import BoardLayout
from .segment import end_word, map_board, named, read_header, slot_stride


def seal_board(layout: BoardLayout, fds: Mapping[str, int]) -> int:
    """End the stream behind the last record that the writer committed, whichever doorbells it still rang.

    Returns that record's sequence, 0 if there is none. Call it when the writer is known to be dead (its pidfd is
    readable): what a living writer published afterwards would be lost. A closed board may be sealed; its end is where
    the writer put it. Twice is once. `fds` stay the caller's, who holds all of them.
    Raises ProtocolViolation if `fds` or the memory does not fit the layout.
    """
    doorbells = [named(fds, f"{layout.name}.doorbell.{reader}") for reader in range(layout.num_readers)]
    with map_board(layout, fds, is_writable=True) as memory, memoryview(memory).cast("Q") as words:
        end = end_word(layout)
        if words[end] == 0:
            # ORDER: commit - the writer's stores ended with its death, which the kernel has told: a slot that has its
            # sequence is whole.
            headers = [read_header(memory, slot * slot_stride(layout)) for slot in range(layout.num_slots + 1)]
            words[end] = protocol.find_end(headers, layout.epoch)
        end_sequence = words[end]
        # ORDER: seal - the word is stored before a doorbell tells of it; the syscall orders the store before it.
        for doorbell in doorbells:
            os.eventfd_write(doorbell, protocol.SEAL_RING)
    return end_sequence - 1
