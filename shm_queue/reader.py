"""One reading end of a board."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping

from ..errors import EndOfStream, ProtocolViolation, WouldBlock
from . import protocol
from .layout import BoardLayout
from .protocol import END_OF_STREAM, SEAL_RING
from .segment import HEADER, Attachment, end_word, read_header


class BoardReader:
    """Reader number `reader` of a board; used by one thread at a time.

    It keeps duplicates of the descriptors `<name>.memory`, `<name>.doorbell.<reader>` and `<name>.credit.<reader>`, so
    those in `fds` stay the caller's. On a sealed board every reader gets all records that the dead writer committed,
    whichever of its doorbells rang, then EndOfStream. A fault of a record or a doorbell (StaleEpoch, ProtocolViolation)
    is raised again by each later call: nothing is skipped.

    `wake_fd`: an eventfd of the caller's through which another thread ends a blocking `receive`, which then raises
    EndOfStream. It is only looked at, never read, so it stays rung; records that were published are handed out first.
    Raises ProtocolViolation if `fds`, the memory or `reader` does not fit the layout.
    """

    def __init__(self, layout: BoardLayout, fds: Mapping[str, int], reader: int, *, wake_fd: int | None = None) -> None:
        if not 0 <= reader < layout.num_readers:
            raise ProtocolViolation(
                f"board {layout.name} has {layout.num_readers} readers, there is no reader {reader}"
            )
        self.layout = layout
        self.reader = reader
        self._attachment = Attachment(layout, fds, range(reader, reader + 1), is_writable=False)
        self._doorbell = self._attachment.doorbells[0]
        self._credit = self._attachment.credits[0]
        self._state = protocol.new_reader(layout.num_slots)
        self._wake_fd = wake_fd
        self._poll = select.poll()
        self._poll.register(self._doorbell, select.POLLIN)
        if wake_fd is not None:
            self._poll.register(wake_fd, select.POLLIN)

    def receive_nowait(self) -> bytes:
        """The next record's payload, copied out; its slot is given back.

        Raises WouldBlock if none waits; EndOfStream once the writer closed the board, or died and the board was sealed
        (the text says which); StaleEpoch for a record of another epoch; ProtocolViolation for a gap or an impossible
        header.
        """
        if self._state.num_rung == 0:
            self._hear_doorbell()
        protocol.check_waiting(self._state)
        if protocol.is_at_seal(self._state):
            self._state = protocol.receive(self._state, END_OF_STREAM)
            raise EndOfStream(f"the writer of board {self.layout.name} died; its records were all handed out")
        memory = self._attachment.memory
        start = protocol.slot_index(self.layout.num_slots, self._state.next_sequence) * self._attachment.stride
        header = read_header(memory, start)
        protocol.check_header(self._state, header, self.layout.epoch, self.layout.slot_bytes)
        body = start + HEADER.size
        payload: bytes = memory[body : body + header.length]
        self._state = protocol.receive(self._state, header.kind)
        if self._state.is_ended:
            raise EndOfStream(f"the writer closed board {self.layout.name}")
        # ORDER: credit - the record is copied out before the writer may fill its slot again.
        os.eventfd_write(self._credit, 1)
        return payload

    def receive(self, timeout_s: float | None = None) -> bytes:
        """As `receive_nowait`, but wait for a record: without end, or up to `timeout_s` and then raise WouldBlock.

        Raises EndOfStream also when `wake_fd` is rung and no record waits.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        is_woken = False
        while True:
            try:
                return self.receive_nowait()
            except WouldBlock:
                if is_woken:
                    raise EndOfStream(f"the reader of board {self.layout.name} was woken to end") from None
                remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
                if remaining_s is not None and remaining_s <= 0:
                    raise
            ready = self._poll.poll(None if remaining_s is None else remaining_s * 1000)
            # Look once more: a record published before the wake may have come after poll had looked at the doorbell.
            is_woken = any(fd == self._wake_fd for fd, _ in ready)

    def num_waiting(self) -> int:
        """Records published to this reader and not handed out (the end of the stream counts as one); takes none.

        Raises ProtocolViolation for a doorbell rung for more than the board can hold.
        """
        try:
            num_rings = os.eventfd_read(self._doorbell)
        except BlockingIOError:
            return self._state.num_rung
        # Rung again, so that a loop that watches `fileno()` still sees the doorbell.
        os.eventfd_write(self._doorbell, num_rings)
        return self._heard(num_rings).num_rung

    def fileno(self) -> int:
        """The doorbell, for `loop.add_reader`. It rings once for what came since the last receive that found nothing,

        a seal included: when it is readable, call `receive_nowait` until it raises WouldBlock (or EndOfStream).
        """
        return self._doorbell

    def detach(self) -> None:
        """Unmap the memory and close the descriptors. Twice is once.

        Not while a thread is in `receive`: end that with `wake_fd` first.
        """
        self._attachment.detach()

    def _hear_doorbell(self) -> None:
        try:
            # ORDER: publish - each of the counted slots was whole before its ring.
            num_rings = os.eventfd_read(self._doorbell)
        except BlockingIOError:
            return
        try:
            self._state = self._heard(num_rings)
        except ProtocolViolation:
            os.eventfd_write(self._doorbell, num_rings)  # the next call must not wait, but fail as this one did
            raise

    def _heard(self, num_rings: int) -> protocol.ReaderState:
        """The state after a doorbell that counted `num_rings`."""
        if num_rings < SEAL_RING:
            return protocol.hear_doorbell(self._state, num_rings)
        # ORDER: seal - the word was stored before the ring that was counted here; so were all of the writer's slots.
        return protocol.hear_seal(self._state, self._attachment.words[end_word(self.layout)])
