"""The contract of a mailbox (mailbox/interface.py): one suite, both transports, both event loops."""

from __future__ import annotations

import asyncio

import pytest

from callboard.errors import EndOfStream, WouldBlock


async def send(outbox, message):
    """Send as an actor does: try, wait for room, try again."""
    while True:
        try:
            return outbox.send_nowait(message)
        except WouldBlock:
            await outbox.wait_room()


def test_messages_of_one_sender_keep_their_order(rig, run):
    async def main():
        inbox = rig.inbox(capacity=4)
        outbox = rig.outbox(inbox, capacity=4)

        async def produce():
            for value in range(500):
                await send(outbox, rig.Number(value))

        producer = asyncio.create_task(produce())
        assert [(await inbox.receive()).value for _ in range(500)] == list(range(500))
        await producer

    run(main)


def test_a_message_arrives_equal_and_of_its_kind(rig, run):
    async def main():
        inbox = rig.inbox()
        outbox = rig.outbox(inbox)
        sent = [rig.Number(-3, b"\x00\xff"), rig.Word("grüße 🎭")]
        for message in sent:
            outbox.send_nowait(message)
        got = [await inbox.receive(), await inbox.receive()]
        assert got == sent
        if rig.transport == "local":
            assert all(a is b for a, b in zip(got, sent, strict=True))

    run(main)


def test_several_senders_each_keep_their_order(rig, run):
    async def main():
        inbox = rig.inbox(capacity=3)
        senders = {name: rig.outbox(inbox, name, capacity=2) for name in "abcd"}

        async def produce(name):
            for value in range(100):
                await send(senders[name], rig.Number(value, name.encode()))

        producers = [asyncio.create_task(produce(name)) for name in senders]
        values = {name: [] for name in senders}
        for _ in range(400):
            message = await inbox.receive()
            values[message.padding.decode()].append(message.value)
        assert values == {name: list(range(100)) for name in senders}
        for producer in producers:
            await producer

    run(main)


def test_a_busy_sender_does_not_starve_another(rig, run):
    """With an inbox of one message, a sender that always has more to send lets the other through."""

    async def main():
        inbox = rig.inbox(capacity=1)
        busy, calm = rig.outbox(inbox, "busy", capacity=1), rig.outbox(inbox, "calm", capacity=1)

        async def produce():
            while True:
                await send(busy, rig.Number(0))

        producer = asyncio.create_task(produce())
        for _ in range(10):
            await inbox.receive()
        call = asyncio.create_task(send(calm, rig.Word("now")))
        while await inbox.receive() != rig.Word("now"):
            pass
        await call
        producer.cancel()

    run(main)


def test_the_bound_holds_end_to_end(rig, run):
    """Messages of 256 KiB: at most the queues, the inbox, and a frame under way at each side."""

    async def main():
        inbox = rig.inbox(capacity=3)
        outbox = rig.outbox(inbox, capacity=2)
        payload = bytes(1 << 18)
        accepted = await rig.num_accepted(outbox, lambda i: rig.Number(i, payload), 100)
        if rig.transport == "local":
            assert accepted == 3
        else:
            assert 3 + 2 <= accepted <= 3 + 3 + 2 + 2
        assert inbox.statistics().num_waiting == 3
        assert inbox.statistics().is_full
        with pytest.raises(WouldBlock):
            outbox.send_nowait(rig.Number(0))
        # Nothing was dropped to make room.
        assert [(await inbox.receive()).value for _ in range(accepted)] == list(range(accepted))

    run(main)


def test_small_messages_are_bounded_too(rig, run):
    async def main():
        inbox = rig.inbox(capacity=3)
        outbox = rig.outbox(inbox, capacity=2)
        accepted = await rig.num_accepted(outbox, rig.Number, 1_000_000)
        assert 3 <= accepted < 100_000
        assert [(await inbox.receive()).value for _ in range(accepted)] == list(range(accepted))
        with pytest.raises(WouldBlock):
            inbox.receive_nowait()

    run(main)


def test_wait_room_wakes_every_waiter(rig, run):
    async def main():
        inbox = rig.inbox(capacity=2)
        outbox = rig.outbox(inbox, capacity=2)
        payload = bytes(1 << 18)
        accepted = await rig.num_accepted(outbox, lambda i: rig.Number(i, payload), 100)
        waiters = [asyncio.create_task(outbox.wait_room()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(waiter.done() for waiter in waiters)
        for _ in range(accepted):
            await inbox.receive()
        await asyncio.gather(*waiters)
        outbox.send_nowait(rig.Number(7))
        assert (await inbox.receive()).value == 7

    run(main)


def test_wait_room_returns_at_once_when_there_is_room(rig, run):
    async def main():
        inbox = rig.inbox()
        await rig.outbox(inbox).wait_room()

    run(main)


def test_a_cancelled_wait_leaves_the_others_waiting(rig, run):
    async def main():
        inbox = rig.inbox(capacity=2)
        outbox = rig.outbox(inbox, capacity=2)
        payload = bytes(1 << 18)
        accepted = await rig.num_accepted(outbox, lambda i: rig.Number(i, payload), 100)
        first, second = (asyncio.create_task(outbox.wait_room()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled() and not second.done()
        for _ in range(accepted):
            await inbox.receive()
        await second

    run(main)


def test_a_cancelled_receive_loses_nothing(rig, run):
    async def main():
        inbox = rig.inbox()
        outbox = rig.outbox(inbox)
        waiting = asyncio.create_task(inbox.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        outbox.send_nowait(rig.Number(1))
        assert (await inbox.receive()).value == 1

    run(main)


def test_receive_nowait_on_an_empty_inbox_would_block(rig, run):
    async def main():
        inbox = rig.inbox()
        rig.outbox(inbox)
        with pytest.raises(WouldBlock):
            inbox.receive_nowait()
        assert inbox.receive_all_nowait() == []

    run(main)


def test_receive_all_nowait_takes_everything_that_waits(rig, run):
    async def main():
        inbox = rig.inbox(capacity=100)
        outbox = rig.outbox(inbox, capacity=100)
        for value in range(50):
            outbox.send_nowait(rig.Number(value))
        got = []
        while len(got) < 50:
            await inbox.wait_message()
            got += inbox.receive_all_nowait()
        assert [message.value for message in got] == list(range(50))
        statistics = inbox.statistics()
        assert (statistics.num_waiting, statistics.num_received, statistics.num_senders) == (0, 50, 1)

    run(main)


def test_nowait_alone_reaches_messages_behind_a_full_inbox(rig, run):
    """A loop that never awaits still gets on: what waits in the transport is read when the inbox is empty."""

    async def main():
        inbox = rig.inbox(capacity=2)
        outbox = rig.outbox(inbox, capacity=8)
        payload = bytes(1 << 18)
        accepted = await rig.num_accepted(outbox, lambda i: rig.Number(i, payload), 100)
        got = []
        while len(got) < accepted:
            got += [message.value for message in inbox.receive_all_nowait()]
        assert got == list(range(accepted))

    run(main)


def test_big_messages(rig, run):
    async def main():
        inbox = rig.inbox(capacity=2)
        outbox = rig.outbox(inbox, capacity=2)
        sent = [rig.Number(size, bytes([size % 251]) * size) for size in (1, 1_000, 65_536, 3_000_000, 2_000_000)]

        async def produce():
            for message in sent:
                await send(outbox, message)

        producer = asyncio.create_task(produce())
        assert [await inbox.receive() for _ in sent] == sent
        await producer

    run(main)


def test_close_of_the_inbox_ends_every_wait(rig, run):
    async def main():
        inbox = rig.inbox()
        outbox = rig.outbox(inbox)
        waiting = [asyncio.create_task(inbox.receive()), asyncio.create_task(inbox.wait_message())]
        await asyncio.sleep(0)
        inbox.close()
        inbox.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [EndOfStream, EndOfStream]
        for use in (inbox.receive_nowait, inbox.receive_all_nowait):
            with pytest.raises(EndOfStream):
                use()
        # The sender is not told here; what it sends is lost or refused for want of room.
        assert await rig.num_accepted(outbox, rig.Number, 3) <= 3

    run(main)


def test_close_of_the_inbox_discards_what_waits(rig, run):
    async def main():
        inbox = rig.inbox()
        outbox = rig.outbox(inbox)
        outbox.send_nowait(rig.Number(1))
        await inbox.wait_message()
        inbox.close()
        statistics = inbox.statistics()
        assert (statistics.num_discarded, statistics.num_waiting, statistics.num_senders) == (1, 0, 0)
        with pytest.raises(EndOfStream):
            await inbox.receive()

    run(main)


def test_close_of_an_outbox_ends_its_waits_and_leaves_the_inbox_open(rig, run):
    async def main():
        inbox = rig.inbox(capacity=2)
        outbox, other = rig.outbox(inbox, "a", capacity=2), rig.outbox(inbox, "b", capacity=2)
        payload = bytes(1 << 18)
        accepted = await rig.num_accepted(outbox, lambda i: rig.Number(i, payload), 100)
        waiting = asyncio.create_task(outbox.wait_room())
        await asyncio.sleep(0)
        outbox.close()
        outbox.close()
        with pytest.raises(EndOfStream):
            await waiting
        with pytest.raises(EndOfStream):
            outbox.send_nowait(rig.Number(0))
        with pytest.raises(EndOfStream):
            await outbox.wait_room()
        got = [(await inbox.receive()).value for _ in range(2)]
        assert got == [0, 1] and accepted >= 2
        inbox.detach("a")
        await send(other, rig.Word("still open"))
        assert await inbox.receive() == rig.Word("still open")

    run(main)


def test_detach_discards_what_that_sender_sent_and_nothing_else(rig, run):
    async def main():
        inbox = rig.inbox(capacity=4)
        dead, alive = rig.outbox(inbox, "dead", capacity=4), rig.outbox(inbox, "alive", capacity=4)
        alive.send_nowait(rig.Word("taken"))
        assert await inbox.receive() == rig.Word("taken")
        dead.send_nowait(rig.Number(0))
        await inbox.wait_message()
        alive.send_nowait(rig.Word("kept"))
        inbox.detach("dead")
        assert await inbox.receive() == rig.Word("kept")
        statistics = inbox.statistics()
        assert (statistics.num_discarded, statistics.num_senders) == (1, 1)
        # Whatever the dead sender's outbox still accepts never arrives.
        await rig.num_accepted(dead, rig.Number, 3)
        await send(alive, rig.Word("later"))
        assert await inbox.receive() == rig.Word("later")
        with pytest.raises(ValueError, match="'dead'"):
            inbox.detach("dead")

    run(main)


def test_a_successor_attaches_under_the_same_name(rig, run):
    async def main():
        inbox = rig.inbox()
        first = rig.outbox(inbox, "worker")
        first.send_nowait(rig.Number(1))
        await inbox.wait_message()
        with pytest.raises(ValueError, match="'worker'"):
            rig.outbox(inbox, "worker")
        inbox.detach("worker")
        second = rig.outbox(inbox, "worker")
        second.send_nowait(rig.Number(2))
        assert (await inbox.receive()).value == 2

    run(main)


def test_detach_of_a_full_inbox_lets_the_others_in(rig, run):
    async def main():
        inbox = rig.inbox(capacity=2)
        dead, alive = rig.outbox(inbox, "dead", capacity=2), rig.outbox(inbox, "alive", capacity=2)
        await rig.num_accepted(dead, lambda i: rig.Number(i, bytes(1 << 18)), 100)
        call = asyncio.create_task(send(alive, rig.Word("in")))
        await asyncio.sleep(0)
        inbox.detach("dead")
        assert await inbox.receive() == rig.Word("in")
        await call

    run(main)
