"""The writing end of a board."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping

from ..errors import MessageTooLarge, SlowPeer, WouldBlock
from . import protocol
from .layout import BoardLayout
from .protocol import END_OF_STREAM, RECORD
from .segment import HEADER, WORD_BYTES, Attachment


class BoardWriter:
    """The one writer of a board; used by one thread at a time.

    It keeps duplicates of the descriptors, so those in `fds` stay the caller's. Raises ProtocolViolation if `fds` or
    the memory does not fit the layout. A board has one writer in its life: a new writer needs a new board and epoch.
    """

    def __init__(self, layout: BoardLayout, fds: Mapping[str, int]) -> None:
        self.layout = layout
        self._attachment = Attachment(layout, fds, range(layout.num_readers), is_writable=True)
        self._state = protocol.new_writer(layout.num_slots, layout.num_readers)

    def publish_nowait(self, payload: bytes | bytearray | memoryview) -> int:
        """Publish one record to every reader and return its sequence, 1 for the first.

        Raises WouldBlock, with nothing done, if a reader has no slot free; MessageTooLarge; EndOfStream after
        `close_stream`.
        """
        num_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        if num_bytes > self.layout.slot_bytes:
            raise MessageTooLarge(f"a record for board {self.layout.name}", num_bytes, self.layout.slot_bytes)
        for reader in protocol.lagging_readers(self._state):
            self._collect_credits(reader)
        next_state = protocol.publish(self._state)
        return self._hand_over(next_state, RECORD, payload, num_bytes)

    def publish(self, payload: bytes | bytearray | memoryview, timeout_s: float, phase_of: Callable[[int], str]) -> int:
        """As `publish_nowait`, but wait up to `timeout_s` for the readers that lag.

        Raises SlowPeer(reader, records it has not given back, seconds waited, `phase_of(reader)`) for the first that
        still does.
        """
        start_s = time.monotonic()
        while True:
            try:
                return self.publish_nowait(payload)
            except WouldBlock:
                reader = protocol.lagging_readers(self._state)[0]
            waited_s = time.monotonic() - start_s
            if waited_s >= timeout_s:
                behind = self.layout.num_slots - self._state.credits[reader]
                raise SlowPeer(reader, behind, waited_s, phase_of(reader))
            poll = select.poll()
            poll.register(self._attachment.credits[reader], select.POLLIN)
            poll.poll((timeout_s - waited_s) * 1000)

    def num_credits(self, reader: int) -> int:
        """Records that can be published to `reader` now."""
        self._collect_credits(reader)
        return self._state.credits[reader]

    def close_stream(self) -> None:
        """Publish the end of the stream: after the last record readers get EndOfStream. Never waits; twice is once."""
        if not self._state.is_closed:
            self._hand_over(protocol.close(self._state), END_OF_STREAM, b"", 0)

    def detach(self) -> None:
        """Unmap the memory and close the descriptors; readers keep what was published. Twice is once."""
        self._attachment.detach()

    def _collect_credits(self, reader: int) -> None:
        try:
            # ORDER: credit - the reader's copy of a slot ended before its credit could be counted here.
            num_credits = os.eventfd_read(self._attachment.credits[reader])
        except BlockingIOError:
            return
        self._state = protocol.collect_credits(self._state, reader, num_credits)

    def _hand_over(
        self,
        next_state: protocol.WriterState,
        kind: int,
        payload: bytes | bytearray | memoryview,
        num_bytes: int,
    ) -> int:
        sequence = self._state.next_sequence
        memory = self._attachment.memory
        start = protocol.slot_index(self.layout.num_slots, sequence) * self._attachment.stride
        body = start + HEADER.size
        memory[body : body + num_bytes] = payload
        words = self._attachment.words
        header = start // WORD_BYTES
        words[header] = self.layout.epoch
        words[header + 2] = num_bytes
        words[header + 3] = kind
        # ORDER: commit - the sequence comes last, in one store: a slot that has it is whole, wherever this is killed.
        words[header + 1] = sequence
        self._state = next_state
        # ORDER: publish - the slot is whole before the first doorbell rings; the syscall orders the stores before it.
        for doorbell in self._attachment.doorbells:
            os.eventfd_write(doorbell, 1)
        return sequence
