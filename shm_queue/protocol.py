"""The rules of a board as pure functions: a state and an event give the next state. No syscall, no memory.

`BoardWriter` and `BoardReader` are thin shells around them; the exhaustive interleaving test drives the same functions.

One record is handed over in this order, and no other is safe:

1. the writer has a credit of every reader, so nobody reads the record's slot any more;
2. it fills the slot (header and payload), then rings the doorbell of each reader once;
3. the reader adds what its doorbell counted to `num_rung`, copies the oldest rung slot out, checks it;
4. the reader gives one credit back.

A board of `num_slots` slots has one more in memory: the end-of-stream record takes no credit, so that a writer can
close a board whose readers are behind.
"""

from __future__ import annotations

import msgspec

from ..errors import EndOfStream, ProtocolViolation, StaleEpoch, WouldBlock

FIRST_SEQUENCE = 1
"""Not 0: a slot that was never filled (zeros) must not pass for a record."""

RECORD = 0
"""Kind of a slot with a payload."""
END_OF_STREAM = 1
"""Kind of the last slot of a stream; it has no payload."""


class WriterState(msgspec.Struct, frozen=True, gc=False):
    """What the writer knows. `credits[i]`: records that it may still publish to reader i, 0..num_slots."""

    num_slots: int
    next_sequence: int
    credits: tuple[int, ...]
    is_closed: bool


class ReaderState(msgspec.Struct, frozen=True, gc=False):
    """What one reader knows. `num_rung`: records rung to it but not handed out, 0..num_slots + 1."""

    num_slots: int
    next_sequence: int
    num_rung: int
    is_ended: bool


class SlotHeader(msgspec.Struct, frozen=True, gc=False):
    """The four 64-bit words in front of each payload. `length` in bytes."""

    epoch: int
    sequence: int
    length: int
    kind: int


def slot_index(num_slots: int, sequence: int) -> int:
    """The slot in memory, 0..num_slots, that holds record `sequence`."""
    return sequence % (num_slots + 1)


def new_writer(num_slots: int, num_readers: int) -> WriterState:
    """A writer that has published nothing and may publish `num_slots` records to each reader."""
    return WriterState(num_slots, FIRST_SEQUENCE, (num_slots,) * num_readers, False)


def lagging_readers(state: WriterState) -> tuple[int, ...]:
    """Readers that have no credit left, by the writer's own count."""
    return tuple(reader for reader, num_credits in enumerate(state.credits) if num_credits == 0)


def collect_credits(state: WriterState, reader: int, num_credits: int) -> WriterState:
    """Reader `reader` has given back `num_credits` slots. Raises ProtocolViolation if it had not that many."""
    total = state.credits[reader] + num_credits
    if total > state.num_slots:
        raise ProtocolViolation(f"reader {reader} gave back {total} slots of {state.num_slots}")
    credits = (*state.credits[:reader], total, *state.credits[reader + 1 :])
    return WriterState(state.num_slots, state.next_sequence, credits, state.is_closed)


def publish(state: WriterState) -> WriterState:
    """Record `state.next_sequence` takes a credit of each reader.

    Raises WouldBlock if one has none left, EndOfStream once closed.
    """
    if state.is_closed:
        raise EndOfStream("the board is closed: nothing can be published any more")
    if 0 in state.credits:
        raise WouldBlock(f"readers {lagging_readers(state)} have given no slot back")
    credits = tuple(num_credits - 1 for num_credits in state.credits)
    return WriterState(state.num_slots, state.next_sequence + 1, credits, False)


def close(state: WriterState) -> WriterState:
    """The end-of-stream record is `state.next_sequence`; it takes the spare slot and no credit.

    Raises EndOfStream if the board is closed already.
    """
    if state.is_closed:
        raise EndOfStream("the board is closed already")
    return WriterState(state.num_slots, state.next_sequence + 1, state.credits, True)


def new_reader(num_slots: int) -> ReaderState:
    """A reader that has received nothing."""
    return ReaderState(num_slots, FIRST_SEQUENCE, 0, False)


def hear_doorbell(state: ReaderState, num_rings: int) -> ReaderState:
    """The doorbell counted `num_rings`. Raises ProtocolViolation if more is rung than the board has slots."""
    num_rung = state.num_rung + num_rings
    if num_rung > state.num_slots + 1:
        raise ProtocolViolation(f"the doorbell was rung for {num_rung} records, the board has {state.num_slots} slots")
    return ReaderState(state.num_slots, state.next_sequence, num_rung, state.is_ended)


def check_waiting(state: ReaderState) -> None:
    """Raises EndOfStream after the end-of-stream record, WouldBlock if no record is rung."""
    if state.is_ended:
        raise EndOfStream("the writer closed the board")
    if state.num_rung == 0:
        raise WouldBlock("no record is waiting")


def check_header(state: ReaderState, header: SlotHeader, epoch: int, slot_bytes: int) -> None:
    """The header of the oldest rung slot must be that of the next record.

    Raises StaleEpoch for another epoch; ProtocolViolation for a gap in the sequence, an unknown kind or an impossible
    length.
    """
    if header.epoch != epoch:
        raise StaleEpoch(header.epoch, epoch)
    if header.sequence != state.next_sequence:
        raise ProtocolViolation(f"record {header.sequence} where {state.next_sequence} is next")
    if header.kind not in (RECORD, END_OF_STREAM):
        raise ProtocolViolation(f"record {header.sequence} is of unknown kind {header.kind}")
    max_bytes = slot_bytes if header.kind == RECORD else 0
    if header.length > max_bytes:
        raise ProtocolViolation(
            f"record {header.sequence} has {header.length:,} bytes, at most {max_bytes:,} are possible"
        )


def receive(state: ReaderState, kind: int) -> ReaderState:
    """The oldest rung record, checked and copied out, is handed out; the slot of a RECORD is then given back."""
    assert state.num_rung > 0 and not state.is_ended, "check_waiting comes first"
    return ReaderState(state.num_slots, state.next_sequence + 1, state.num_rung - 1, kind == END_OF_STREAM)
