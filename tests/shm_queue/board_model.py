"""A small world around the very functions of the board: one writer, its readers, the sealer; who may step when.

The model adds what kernel and memory do. Payloads are filled and copied in halves; each word of a header is a store of
its own; each doorbell and credit is an atomic counter; the sealer's word is stored, rung and read in separate steps.
Steps that touch nothing shared are taken together with the one before or after them: nobody can tell the difference.
A death may come between any two steps; what a dead writer had stored stays.

A board's caller waits for credits; a ring's caller (`can_merge`) never does: updates that find no credit are merged
into the next record.

Moves are computed once for the parts of the world that they look at, and the parts are shared, so that a state costs
little more than its entry in a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from callboard.errors import EndOfStream, WouldBlock
from callboard.shm_queue import protocol
from callboard.shm_queue.protocol import END_OF_STREAM, RECORD, SEAL_RING, ReaderState, SlotHeader, WriterState

NUM_UPDATES = 3
EPOCH = 7
SLOT_BYTES = 2

Updates = tuple[int, ...]
"""What a record says: the numbers of the updates merged into it; one number on a board."""


class Writer(msgspec.Struct, frozen=True, cache_hash=True):
    state: WriterState
    kind: int = RECORD
    """Of the hand-over under way, or the last."""
    todo: tuple[str, ...] = ()
    """Steps left of the hand-over under way; empty between two."""
    pending: Updates = ()
    """Made by the caller, not yet published."""
    num_made: int = 0
    log: tuple[Updates, ...] = ()
    """Records whose hand-over has begun, by sequence from 1."""
    is_alive: bool = True


class Lane(msgspec.Struct, frozen=True, cache_hash=True):
    """One reader and the two counters between it and the writer."""

    state: ReaderState
    todo: tuple[str, ...] = ()
    copied: tuple[Updates, ...] = ()
    received: Updates = ()
    is_alive: bool = True
    doorbell: int = 0
    credit: int = 0
    num_told: int = 0
    """Records whose doorbell was rung to it: what it is owed. No rule looks at it."""


class Slot(NamedTuple):
    header: SlotHeader
    halves: tuple[Updates, Updates]


class Memory(msgspec.Struct, frozen=True, cache_hash=True):
    slots: tuple[Slot, ...]
    end_word: int = 0


class Sealer(msgspec.Struct, frozen=True, cache_hash=True):
    todo: tuple[str, ...]
    found: int = 0
    """What it is about to store."""


World = tuple[Writer, Memory, Sealer, tuple[Lane, ...]]


class Touch(NamedTuple):
    """What a move of the writer or the sealer does to a reader's counters."""

    reader: int
    num_rings: int = 0
    num_told: int = 0
    takes_credit: bool = False


def find_end(memory: Memory, num_told: tuple[int, ...]) -> int:
    return protocol.find_end([slot.header for slot in memory.slots], EPOCH)


class Rules(NamedTuple):
    """The steps of all sides; other ones show that the model can see a fault."""

    hand_over: tuple[str, ...] = ("fill_0", "fill_1", "epoch", "length", "kind", "sequence", "ring_0", "ring_1")
    take_over: tuple[str, ...] = ("check", "copy_0", "copy_1", "credit")
    seal: tuple[str, ...] = ("look", "store", "ring_0", "ring_1")
    find_end: Callable[[Memory, tuple[int, ...]], int] = find_end
    waits_for_death: bool = True
    """Whether the sealer begins only when the writer is dead."""


RULES = Rules()


class Fault(AssertionError):
    """A record lost, doubled or torn, or somebody who waits without end."""


class Counts(NamedTuple):
    num_states: int
    num_at_rest: int


class Model:
    """All runs of one board under some rules."""

    def __init__(self, num_slots: int, num_readers: int, rules: Rules = RULES, *, can_merge: bool = False) -> None:
        self.num_slots, self.num_readers, self.can_merge = num_slots, num_readers, can_merge
        absent = {f"ring_{reader}" for reader in range(num_readers, 2)}
        self.rules = rules._replace(
            hand_over=tuple(step for step in rules.hand_over if step not in absent),
            seal=tuple(step for step in rules.seal if step not in absent),
        )
        # The one object of each value: equal parts are the same object, so comparing worlds compares addresses.
        self.parts: dict[object, object] = {}
        self.writer_moves = cache(lambda *parts: [self.shared(move) for move in self.find_writer_moves(*parts)])
        self.sealer_move = cache(lambda *parts: self.shared(self.find_sealer_move(*parts)))
        self.reader_moves = cache(lambda *parts: self.shared(tuple(self.find_reader_moves(*parts))))
        self.touched = cache(lambda *parts: self.shared((touch_lane(*parts),))[0])
        self.killed = cache(lambda part: self.shared((replace(part, is_alive=False),))[0])

    def shared(self, parts: tuple) -> tuple:
        return tuple(self.parts.setdefault(part, part) for part in parts)

    def start(self) -> World:
        slots = (Slot(SlotHeader(0, 0, 0, 0), ((), ())),) * (self.num_slots + 1)
        lane = Lane(protocol.new_reader(self.num_slots))
        writer = Writer(protocol.new_writer(self.num_slots, self.num_readers))
        return (writer, Memory(slots), Sealer(self.rules.seal), (lane,) * self.num_readers)

    def explore(self, *, may_die: bool) -> Counts:
        """Visit every reachable state; each step moves forward, so there is no cycle.

        Raises what a faulty rule leads to: Fault, or what the protocol's own checks raise.
        """
        seen = {self.start()}
        todo = list(seen)
        num_at_rest = 0
        while todo:
            world = todo.pop()
            found = self.steps(world)
            if not found:
                num_at_rest += 1
                check_at_rest(world)
            if may_die:
                found += self.deaths(world)
            for successor in found:
                if successor not in seen:
                    seen.add(successor)
                    todo.append(successor)
        return Counts(len(seen), num_at_rest)

    def steps(self, world: World) -> list[World]:
        writer, memory, sealer, lanes = world
        found = []
        if writer.is_alive:
            credits = tuple([lane.credit for lane in lanes])
            for writer_after, memory_after, touch in self.writer_moves(writer, memory, credits):
                found.append((writer_after, memory_after, sealer, self.with_touch(lanes, touch)))
        if sealer.todo and not (writer.is_alive and self.rules.waits_for_death):
            num_told = tuple([lane.num_told for lane in lanes])
            sealer_after, memory_after, touch = self.sealer_move(sealer, memory, num_told)
            found.append((writer, memory_after, sealer_after, self.with_touch(lanes, touch)))
        for index, lane in enumerate(lanes):
            if lane.is_alive:
                for after in self.reader_moves(lane, memory):
                    found.append((writer, memory, sealer, with_item(lanes, index, after)))
        return found

    def deaths(self, world: World) -> list[World]:
        """The world after each death that can come: of anybody, if nobody is dead yet."""
        writer, memory, sealer, lanes = world
        if not (writer.is_alive and all([lane.is_alive for lane in lanes])):
            return []
        found = [(self.killed(writer), memory, sealer, lanes)]
        for index, lane in enumerate(lanes):
            found.append((writer, memory, sealer, with_item(lanes, index, self.killed(lane))))
        return found

    def with_touch(self, lanes: tuple[Lane, ...], touch: Touch | None) -> tuple[Lane, ...]:
        if touch is None:
            return lanes
        return with_item(lanes, touch.reader, self.touched(lanes[touch.reader], touch))

    def find_writer_moves(
        self, writer: Writer, memory: Memory, credits: tuple[int, ...]
    ) -> Iterator[tuple[Writer, Memory, Touch | None]]:
        if writer.todo:
            yield hand_over(writer, memory)
            return
        if writer.state.is_closed:
            return
        if not writer.pending and writer.num_made == NUM_UPDATES:
            state = protocol.close(writer.state)
            begun = replace(writer, state=state, todo=self.rules.hand_over, kind=END_OF_STREAM)
            yield hand_over(begun, memory)
            return
        if writer.num_made < NUM_UPDATES and (self.can_merge or not writer.pending):
            num_made = writer.num_made + 1
            yield replace(writer, pending=(*writer.pending, num_made), num_made=num_made), memory, None
        if not writer.pending:
            return
        for reader in protocol.lagging_readers(writer.state):
            if credits[reader] > 0:
                state = protocol.collect_credits(writer.state, reader, credits[reader])
                yield replace(writer, state=state), memory, Touch(reader, takes_credit=True)
        try:
            state = protocol.publish(writer.state)
        except WouldBlock:
            return
        log = (*writer.log, writer.pending)
        begun = replace(writer, state=state, todo=self.rules.hand_over, kind=RECORD, pending=(), log=log)
        yield hand_over(begun, memory)

    def find_sealer_move(
        self, sealer: Sealer, memory: Memory, num_told: tuple[int, ...]
    ) -> tuple[Sealer, Memory, Touch | None]:
        step, *rest = sealer.todo
        sealer = replace(sealer, todo=tuple(rest))
        if step == "look":
            return replace(sealer, found=self.rules.find_end(memory, num_told)), memory, None
        if step == "store":
            return sealer, replace(memory, end_word=sealer.found), None
        return sealer, memory, Touch(int(step.removeprefix("ring_")), num_rings=SEAL_RING)

    def find_reader_moves(self, lane: Lane, memory: Memory) -> Iterator[Lane]:
        if lane.todo:
            yield take_over(lane, memory)
            return
        try:
            protocol.check_waiting(lane.state)
        except EndOfStream:
            return
        except WouldBlock:
            if lane.doorbell >= SEAL_RING:
                yield replace(lane, todo=("end_word",), doorbell=0)
            elif lane.doorbell > 0:
                yield replace(lane, state=protocol.hear_doorbell(lane.state, lane.doorbell), doorbell=0)
            return
        if protocol.is_at_seal(lane.state):
            yield replace(lane, state=protocol.receive(lane.state, END_OF_STREAM))
        else:
            yield take_over(replace(lane, todo=self.rules.take_over), memory)


def with_item(lanes: tuple, index: int, value: object) -> tuple:
    return (*lanes[:index], value, *lanes[index + 1 :])


def touch_lane(lane: Lane, touch: Touch) -> Lane:
    credit = 0 if touch.takes_credit else lane.credit
    doorbell, num_told = lane.doorbell + touch.num_rings, lane.num_told + touch.num_told
    return replace(lane, credit=credit, doorbell=doorbell, num_told=num_told)


def hand_over(writer: Writer, memory: Memory) -> tuple[Writer, Memory, Touch | None]:
    step, *rest = writer.todo
    writer = replace(writer, todo=tuple(rest))
    verb, _, number = step.partition("_")
    is_record = writer.kind == RECORD
    if verb == "ring":
        return writer, memory, Touch(int(number), num_rings=1, num_told=int(is_record))
    sequence = writer.state.next_sequence - 1  # it moved on when the hand-over began
    index = protocol.slot_index(writer.state.num_slots, sequence)
    header, halves = memory.slots[index]
    if verb == "fill":
        halves = with_item(halves, int(number), writer.log[-1]) if is_record else halves
    else:
        words = {"epoch": EPOCH, "length": SLOT_BYTES * is_record, "kind": writer.kind, "sequence": sequence}
        header = replace(header, **{verb: words[verb]})
    return writer, replace(memory, slots=with_item(memory.slots, index, Slot(header, halves))), None


def take_over(lane: Lane, memory: Memory) -> Lane:
    step, *rest = lane.todo
    lane = replace(lane, todo=tuple(rest))
    if step == "end_word":
        return replace(lane, state=protocol.hear_seal(lane.state, memory.end_word))
    if step == "credit":
        return replace(lane, credit=lane.credit + 1)
    header, halves = memory.slots[protocol.slot_index(lane.state.num_slots, lane.state.next_sequence)]
    if step == "check":
        protocol.check_header(lane.state, header, EPOCH, SLOT_BYTES)
        if header.kind == END_OF_STREAM:
            return replace(lane, state=protocol.receive(lane.state, END_OF_STREAM), todo=())
        return lane
    copied = (*lane.copied, halves[int(step.removeprefix("copy_"))])
    if len(copied) < 2:
        return replace(lane, copied=copied)
    if copied[0] != copied[1]:
        raise Fault(f"a torn record: {copied}")
    state = protocol.receive(lane.state, RECORD)
    return replace(lane, state=state, copied=(), received=(*lane.received, *copied[0]))


def check_at_rest(world: World) -> None:
    """Nobody alive can take a step: all is done, or the writer waits for a dead reader."""
    writer, _, _, lanes = world
    living = [lane for lane in lanes if lane.is_alive]
    is_stuck = writer.is_alive and not writer.state.is_closed
    if is_stuck and any(lanes[reader].is_alive for reader in protocol.lagging_readers(writer.state)):
        raise Fault("the writer waits for a living reader")  # for a dead one publish() raises SlowPeer
    if is_stuck and len(living) == len(lanes):
        raise Fault("nobody is dead, yet the stream has not ended")
    told = writer.log[: max(lane.num_told for lane in lanes)]
    num_owed = sum(len(updates) for updates in told)
    for lane in living:
        if not lane.state.is_ended and not is_stuck:
            raise Fault("a reader waits for a writer that has ended")
        if lane.received != tuple(range(1, len(lane.received) + 1)):
            raise Fault("lost, doubled or out of order")
        if len(lane.received) < num_owed:
            raise Fault("a record that some reader was told of is lost")
        if writer.is_alive and writer.state.is_closed and len(lane.received) < NUM_UPDATES:
            raise Fault("records are missing before the end of the stream")
    if len({lane.received for lane in living}) > 1:
        raise Fault("a record is half entered: some readers have it, others do not")
