"""Every interleaving of one writer and two readers, with deaths at any point, over the very functions of the board.

The model adds what the kernel and the memory do: slots are filled and copied in halves, each doorbell and credit is an
atomic counter. A state is expanded by every step that some living process can take and by every death. Expected: no
record is lost, doubled or torn, and whoever waits for ever waits, directly or through the writer, for somebody who is
dead.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from callboard.errors import EndOfStream, ProtocolViolation, StaleEpoch, WouldBlock
from callboard.shm_queue import protocol
from callboard.shm_queue.protocol import END_OF_STREAM, RECORD, ReaderState, SlotHeader, WriterState

NUM_READERS = 2
NUM_RECORDS = 3
EPOCH = 7
SLOT_BYTES = 2


class Slot(NamedTuple):
    header: SlotHeader
    halves: tuple[int, int]


class Writer(NamedTuple):
    state: WriterState
    todo: tuple[str, ...]
    """Steps left of the hand-over under way; empty between two."""
    target: int
    """Sequence of the hand-over under way."""
    kind: int
    is_alive: bool


class Reader(NamedTuple):
    state: ReaderState
    todo: tuple[str, ...]
    kind: int
    copied: tuple[int, ...]
    received: tuple[int, ...]
    is_alive: bool


class World(NamedTuple):
    num_slots: int
    writer: Writer
    readers: tuple[Reader, ...]
    slots: tuple[Slot, ...]
    doorbells: tuple[int, ...]
    credits: tuple[int, ...]
    num_rung: tuple[int, ...]
    """Rings so far: what each reader is owed."""


class Order(NamedTuple):
    """The steps of both sides; the faulty orders show that the model can see a fault."""

    hand_over: tuple[str, ...] = ("fill_0", "fill_1", "header", "ring_0", "ring_1")
    take_over: tuple[str, ...] = ("check", "copy_0", "copy_1", "hand_out", "credit")


def replace(values: tuple, index: int, value: object) -> tuple:
    return (*values[:index], value, *values[index + 1 :])


def start(num_slots: int) -> World:
    reader = Reader(protocol.new_reader(num_slots), (), RECORD, (), (), True)
    return World(
        num_slots=num_slots,
        writer=Writer(protocol.new_writer(num_slots, NUM_READERS), (), 0, RECORD, True),
        readers=(reader,) * NUM_READERS,
        slots=(Slot(SlotHeader(0, 0, 0, 0), (0, 0)),) * (num_slots + 1),
        doorbells=(0,) * NUM_READERS,
        credits=(0,) * NUM_READERS,
        num_rung=(0,) * NUM_READERS,
    )


def writer_steps(world: World, order: Order) -> list[World]:
    writer = world.writer
    if writer.todo:
        return [writer_hand_over(world)]
    if writer.state.is_closed:
        return []
    if writer.state.next_sequence > NUM_RECORDS:
        closed = Writer(protocol.close(writer.state), order.hand_over, writer.state.next_sequence, END_OF_STREAM, True)
        return [world._replace(writer=closed)]
    steps = []
    for reader in protocol.lagging_readers(writer.state):
        if world.credits[reader] > 0:
            state = protocol.collect_credits(writer.state, reader, world.credits[reader])
            credits = replace(world.credits, reader, 0)
            steps.append(world._replace(writer=writer._replace(state=state), credits=credits))
    try:
        state = protocol.publish(writer.state)
    except WouldBlock:
        return steps
    return [world._replace(writer=Writer(state, order.hand_over, writer.state.next_sequence, RECORD, True))]


def writer_hand_over(world: World) -> World:
    step, *rest = world.writer.todo
    writer = world.writer._replace(todo=tuple(rest))
    index = protocol.slot_index(world.num_slots, writer.target)
    slot = world.slots[index]
    verb, _, number = step.partition("_")
    if verb == "fill":
        if writer.kind == RECORD:
            slot = slot._replace(halves=replace(slot.halves, int(number), writer.target))
    elif verb == "header":
        length = SLOT_BYTES if writer.kind == RECORD else 0
        slot = slot._replace(header=SlotHeader(EPOCH, writer.target, length, writer.kind))
    else:
        reader = int(number)
        doorbells = replace(world.doorbells, reader, world.doorbells[reader] + 1)
        num_rung = replace(world.num_rung, reader, world.num_rung[reader] + 1)
        return world._replace(writer=writer, doorbells=doorbells, num_rung=num_rung)
    return world._replace(writer=writer, slots=replace(world.slots, index, slot))


def reader_steps(world: World, index: int, order: Order) -> list[World]:
    reader = world.readers[index]
    if reader.todo:
        return [reader_take_over(world, index)]
    try:
        protocol.check_waiting(reader.state)
    except EndOfStream:
        return []
    except WouldBlock:
        if world.doorbells[index] == 0:
            return []
        heard = reader._replace(state=protocol.hear_doorbell(reader.state, world.doorbells[index]))
        readers = replace(world.readers, index, heard)
        return [world._replace(readers=readers, doorbells=replace(world.doorbells, index, 0))]
    begun = reader._replace(todo=order.take_over, copied=())
    return [world._replace(readers=replace(world.readers, index, begun))]


def reader_take_over(world: World, index: int) -> World:
    reader = world.readers[index]
    step, *rest = reader.todo
    reader = reader._replace(todo=tuple(rest))
    sequence = reader.state.next_sequence
    slot = world.slots[protocol.slot_index(world.num_slots, sequence)]
    credits = world.credits
    verb, _, number = step.partition("_")
    if verb == "check":
        protocol.check_header(reader.state, slot.header, EPOCH, SLOT_BYTES)
        reader = reader._replace(kind=slot.header.kind)
    elif verb == "copy":
        reader = reader._replace(copied=(*reader.copied, slot.halves[int(number)]))
    elif verb == "hand":
        if reader.kind == RECORD:
            assert reader.copied == (sequence, sequence), "a torn or wrong record"
            reader = reader._replace(received=(*reader.received, sequence))
        reader = reader._replace(state=protocol.receive(reader.state, reader.kind))
    elif reader.kind == RECORD:
        credits = replace(credits, index, credits[index] + 1)
    return world._replace(readers=replace(world.readers, index, reader), credits=credits)


def deaths(world: World) -> list[World]:
    found = []
    if world.writer.is_alive:
        found.append(world._replace(writer=world.writer._replace(is_alive=False)))
    for index, reader in enumerate(world.readers):
        if reader.is_alive:
            found.append(world._replace(readers=replace(world.readers, index, reader._replace(is_alive=False))))
    return found


def steps(world: World, order: Order) -> list[World]:
    found = writer_steps(world, order) if world.writer.is_alive else []
    for index, reader in enumerate(world.readers):
        if reader.is_alive:
            found += reader_steps(world, index, order)
    return found


def check_at_rest(world: World) -> None:
    """Nobody alive can take a step: all is done, or somebody died."""
    writer = world.writer
    dead_readers = {index for index, reader in enumerate(world.readers) if not reader.is_alive}
    is_stuck = writer.is_alive and not writer.state.is_closed
    if is_stuck:
        # publish() ends this wait by SlowPeer.
        assert set(protocol.lagging_readers(writer.state)) <= dead_readers, "the writer waits for a living reader"
    for index, reader in enumerate(world.readers):
        if not reader.is_alive:
            continue
        num_records = min(world.num_rung[index], NUM_RECORDS)
        assert reader.received == tuple(range(1, num_records + 1)), "lost or doubled"
        if not reader.state.is_ended:
            assert is_stuck or not writer.is_alive, "the reader waits for a writer that has ended well"
    if writer.is_alive and not dead_readers:
        assert all(reader.received == (1, 2, 3) and reader.state.is_ended for reader in world.readers)


def explore(num_slots: int, order: Order, *, may_die: bool) -> tuple[int, int]:
    """Visit every reachable state; returns (states, states at rest). Each step moves forward, so there is no cycle."""
    seen = {start(num_slots)}
    todo = list(seen)
    num_at_rest = 0
    while todo:
        world = todo.pop()
        found = steps(world, order)
        if not found:
            num_at_rest += 1
            check_at_rest(world)
        for successor in found + (deaths(world) if may_die else []):
            if successor not in seen:
                seen.add(successor)
                todo.append(successor)
    return len(seen), num_at_rest


@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_every_interleaving_with_deaths(num_slots: int) -> None:
    num_states, num_at_rest = explore(num_slots, Order(), may_die=True)
    assert num_states > 1000
    assert num_at_rest > 1


@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_every_interleaving_without_deaths_ends_well(num_slots: int) -> None:
    _, num_at_rest = explore(num_slots, Order(), may_die=False)
    assert num_at_rest >= 1


@pytest.mark.parametrize(
    "order",
    [
        Order(hand_over=("ring_0", "fill_0", "fill_1", "header", "ring_1")),
        Order(hand_over=("fill_0", "header", "ring_0", "fill_1", "ring_1")),
        Order(take_over=("check", "copy_0", "credit", "credit", "copy_1", "hand_out")),
        Order(hand_over=("fill_0", "fill_1", "header", "ring_0")),
        Order(take_over=("check", "copy_0", "copy_1", "hand_out")),
    ],
    ids=["rung_empty", "rung_half_full", "credited_twice", "one_never_rung", "no_credit"],
)
def test_the_model_sees_a_wrong_order(order: Order) -> None:
    with pytest.raises((AssertionError, ProtocolViolation, StaleEpoch)):
        explore(1, order, may_die=False)
