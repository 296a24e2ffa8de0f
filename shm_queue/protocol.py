"""The rules of a board as pure functions: a state and an event give the next state. No syscall, no memory.

`BoardWriter` and `BoardReader` are thin shells around them; the exhaustive interleaving test drives the same functions.

One record is handed over in this order, and no other is safe:

1. the writer has a credit of every reader, so nobody reads the record's slot any more;
2. it fills the slot: payload, epoch, length, kind, and last, as one store, the sequence, which commits the record;
3. it rings the doorbell of each reader once;
4. the reader adds what its doorbell counted to `num_rung`, copies the oldest rung slot out, checks it;
5. the reader gives one credit back.

A board of `num_slots` slots has one more in memory: the end-of-stream record takes no credit, so that a writer can
close a board whose readers are behind.

A writer that dies leaves some readers with a doorbell that others never heard. Whoever has seen it dead seals the
board, so that all readers end at the same record:

1. the sealer looks at the headers: a slot whose sequence is stored is whole, wherever the writer was killed, and the
   highest is the last record, rung to somebody or not;
2. it stores `end_sequence`, the sequence after that record, into a word that only a sealer ever writes;
3. it adds SEAL_RING to each doorbell, which no number of records reaches;
4. a reader that finds it in its count reads the word. All records before `end_sequence` are now rung to it, whatever
   it had heard, and then comes the end of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import EndOfStream, ProtocolViolation, StaleEpoch, WouldBlock

FIRST_SEQUENCE = 1
"""Not 0: a slot that was never filled (zeros) must not pass for a record."""

RECORD = 0
"""Kind of a slot with a payload."""
END_OF_STREAM = 1
"""Kind of the last slot of a stream; it has no payload."""

SEAL_RING = 1 << 32
"""What a sealer adds to a doorbell. The writer adds 1 a record, at most num_slots + 1 before the reader takes them."""
MAX_SEQUENCE = (1 << 63) - 1
"""No stream gets there: a larger number in a header is garbage."""


class WriterState(msgspec.Struct, frozen=True, gc=False):
    """What the writer knows. `credits[i]`: records that it may still publish to reader i, 0..num_slots."""

    num_slots: int
    next_sequence: int
    credits: tuple[int, ...]
    is_closed: bool


class ReaderState(msgspec.Struct, frozen=True, gc=False):
    """What one reader knows.

    `num_rung`: records rung to it but not handed out, the end of the stream included, 0..num_slots + 1.
    `end_sequence`: where a sealed board ends; 0: it is not known to be sealed.
    """

    num_slots: int
    next_sequence: int
    num_rung: int
    end_sequence: int
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
    return ReaderState(num_slots, FIRST_SEQUENCE, 0, 0, False)


def hear_doorbell(state: ReaderState, num_rings: int) -> ReaderState:
    """The doorbell counted `num_rings`. Raises ProtocolViolation if more is rung than the board has slots."""
    num_rung = state.num_rung + num_rings
    if num_rung > state.num_slots + 1:
        raise ProtocolViolation(f"the doorbell was rung for {num_rung} records, the board has {state.num_slots} slots")
    return ReaderState(state.num_slots, state.next_sequence, num_rung, state.end_sequence, state.is_ended)


def find_end(headers: Sequence[SlotHeader], epoch: int) -> int:
    """The sequence of the end of a stream whose writer is dead; `headers`: of all slots, by index.

    It is that of the end-of-stream record if the writer had committed it, else the one after the last record. A slot
    that was being filled still has the sequence of a record that all readers have given back, which is not the
    highest, or 0. A header that no writer of this board leaves is passed over; its readers refuse it.
    """
    committed = [
        header
        for index, header in enumerate(headers)
        if header.epoch == epoch
        and FIRST_SEQUENCE <= header.sequence <= MAX_SEQUENCE
        and slot_index(len(headers) - 1, header.sequence) == index
    ]
    if not committed:
        return FIRST_SEQUENCE
    last = max(committed, key=lambda header: header.sequence)
    return last.sequence if last.kind == END_OF_STREAM else last.sequence + 1


def hear_seal(state: ReaderState, end_sequence: int) -> ReaderState:
    """The doorbell counted a SEAL_RING and the board ends at `end_sequence`: whatever is before it is rung.

    Nothing changes for a reader that has ended or has heard it before. Raises ProtocolViolation for an end that is
    behind the reader or further ahead than the board has slots.
    """
    if state.is_ended or state.end_sequence != 0:
        return state
    num_rung = end_sequence + 1 - state.next_sequence
    if not max(state.num_rung, 1) <= num_rung <= state.num_slots + 1:
        raise ProtocolViolation(
            f"the board is sealed to end at {end_sequence} where {state.next_sequence} is next, "
            f"{state.num_rung} records are rung, and it has {state.num_slots} slots"
        )
    return ReaderState(state.num_slots, state.next_sequence, num_rung, end_sequence, False)


def is_at_seal(state: ReaderState) -> bool:
    """Whether all records of a sealed board are handed out, and its end is next."""
    return state.next_sequence == state.end_sequence


def check_waiting(state: ReaderState) -> None:
    """Raises EndOfStream after the end of the stream, WouldBlock if no record is rung."""
    if state.is_ended:
        raise EndOfStream("the writer died" if state.end_sequence else "the writer closed the board")
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
    """The oldest rung record, checked and copied out, is handed out; the slot of a RECORD is then given back.

    The end of a sealed board counts as an END_OF_STREAM, whether its slot was filled or not.
    """
    assert state.num_rung > 0 and not state.is_ended, "check_waiting comes first"
    is_ended = kind == END_OF_STREAM
    return ReaderState(state.num_slots, state.next_sequence + 1, state.num_rung - 1, state.end_sequence, is_ended)
