"""Senders keep the order and lose nothing; faults beside a loop reach it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from callboard.actors.faults import Faults
from callboard.actors.sender import Sender
from callboard.errors import MessageTooLarge, WouldBlock
from callboard.mailbox import Inbox, LocalOutbox


class Number(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    value: int


async def test_the_order_holds_and_nothing_overtakes_what_is_kept() -> None:
    inbox: Inbox[Number] = Inbox(Number, 1, 100)
    sender: Sender[Number] = Sender(LocalOutbox(inbox), Faults())
    for value in range(5):
        sender.post(Number(value))
    got = [inbox.receive_nowait()]
    with pytest.raises(WouldBlock):
        sender.send_nowait(Number(99))
    got += [await inbox.receive() for _ in range(4)]
    assert [number.value for number in got] == [0, 1, 2, 3, 4]
    await asyncio.sleep(0)
    assert not sender.is_blocked


async def test_what_is_posted_when_there_is_room_again_may_find_none() -> None:
    """The room that was made is used up by the last kept message."""
    inbox: Inbox[Number] = Inbox(Number, 1, 100)
    sender: Sender[Number] = Sender(LocalOutbox(inbox), Faults())
    more = iter([Number(2), Number(3)])
    sender.on_room = lambda: [sender.post(number) for number in [next(more, None)] if number is not None] and None
    sender.post(Number(0))
    sender.post(Number(1))
    assert [(await inbox.receive()).value for _ in range(4)] == [0, 1, 2, 3]


async def test_a_kept_message_that_can_never_go_is_a_fault() -> None:
    class Full:
        is_full = True

        def send_nowait(self, message: Number) -> None:
            if self.is_full:
                raise WouldBlock
            raise MessageTooLarge("Number", 2, 1)

        async def wait_room(self) -> None:
            self.is_full = False

        def close(self) -> None: ...

    faults = Faults()
    Sender(Full(), faults).post(Number(0))
    with pytest.raises(MessageTooLarge):
        await faults.run(asyncio.sleep(600))


async def test_closing_drops_what_is_kept() -> None:
    inbox: Inbox[Number] = Inbox(Number, 1, 100)
    faults = Faults()
    sender: Sender[Number] = Sender(LocalOutbox(inbox), faults)
    sender.post(Number(0))
    sender.post(Number(1))
    sender.close()
    await faults.wait_cancelled()
    assert await faults.run(asyncio.sleep(0, "no fault")) == "no fault"


async def test_run_gives_the_result_or_the_first_fault_and_cancels_the_work() -> None:
    faults = Faults()
    assert await faults.run(asyncio.sleep(0, 5)) == 5
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        raise ValueError("first")

    faults.start(fail())
    with pytest.raises(ValueError, match="first"):
        await faults.run(work())
    faults.report(KeyError("second"))
    await ended.wait()
    with pytest.raises(ValueError, match="first"):
        await faults.run(asyncio.sleep(600))
