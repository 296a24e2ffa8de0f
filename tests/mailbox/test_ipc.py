"""What only the ipc transport has: sockets made by somebody else, encoding, real processes, no use of CPU when idle."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import sys

import msgspec
import pytest
import zmq

from callboard.errors import ConfigError, MessageTooLarge, ProtocolViolation, StartFailed, WouldBlock
from callboard.mailbox import Inbox, ZmqOutbox, bind_listener
from callboard.mailbox.messages.requests import Abort, FrontendToTokenizer, Generate, TokenPrompt
from callboard.mailbox.messages.sampling import SamplingParams

SENDER_PROGRAM = """
import asyncio, sys
import msgspec
from callboard.errors import WouldBlock
from callboard.mailbox import ZmqOutbox

class Number(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    value: int
    padding: bytes = b""

async def main():
    outbox = ZmqOutbox(sys.argv[1], 8, 1 << 20)
    value = 0
    while True:
        try:
            outbox.send_nowait(Number(value, bytes(10_000)))
            value += 1
        except WouldBlock:
            await outbox.wait_room()

asyncio.run(main())
"""


def test_a_receiver_that_starts_after_the_sender(ipc, run):
    async def main():
        inbox = ipc.inbox()
        path, listening_fd = ipc.listen()
        outbox = ZmqOutbox(path, 3, ipc.max_bytes)
        ipc.keep(outbox)
        assert await ipc.num_accepted(outbox, ipc.Number, 10) == 3
        waiting = asyncio.create_task(outbox.wait_room())
        inbox.attach("early", path, listening_fd)
        assert [(await inbox.receive()).value for _ in range(3)] == [0, 1, 2]
        await waiting
        outbox.send_nowait(ipc.Number(3))
        assert (await inbox.receive()).value == 3

    run(main)


def test_a_sender_killed_by_sigkill(ipc, run):
    """What had arrived keeps its order; after detach nothing of the dead is left, and a new life attaches."""

    async def main():
        inbox = ipc.inbox(capacity=4)
        for life in range(2):
            path, listening_fd = ipc.listen()
            environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
            command = [sys.executable, "-P", "-c", SENDER_PROGRAM, path]
            process = await asyncio.to_thread(subprocess.Popen, command, env=environment)
            try:
                inbox.attach("worker", path, listening_fd)
                got = [(await inbox.receive()).value for _ in range(50)]
            finally:
                process.send_signal(signal.SIGKILL)
                assert await asyncio.to_thread(process.wait) == -signal.SIGKILL
            got += [message.value for message in inbox.receive_all_nowait()]
            assert got == list(range(len(got)))
            inbox.detach("worker")
            statistics = inbox.statistics()
            assert (statistics.num_waiting, statistics.num_senders) == (0, 0), life
            with pytest.raises(WouldBlock):
                inbox.receive_nowait()

    run(main)


def test_a_message_that_cannot_be_decoded_names_its_sender(ipc, run):
    async def main():
        inbox = ipc.inbox()
        good = ipc.outbox(inbox, "good")
        path, listening_fd = ipc.listen()
        inbox.attach("tokenizer.1", path, listening_fd)
        raw = zmq.Context.instance().socket(zmq.PUSH)
        raw.setsockopt(zmq.LINGER, 0)
        raw.connect(f"ipc://{path}")
        try:
            bad = (
                b"\xc1",  # no MessagePack at all
                msgspec.msgpack.encode([99, 1]),  # unknown kind
                msgspec.msgpack.encode([1, "not a number"]),
                msgspec.msgpack.encode([1, 5])[:-1],  # cut short
                b"\x92\x02\xa1\xff",  # invalid UTF-8
                b"\x91" * 200_000,  # nested too deeply
            )
            for payload in bad:
                raw.send(payload)
                with pytest.raises(ProtocolViolation, match=r"from 'tokenizer\.1'"):
                    await inbox.receive()
            # The place in the order is kept, and what is good before and behind it is not lost.
            for payload in (msgspec.msgpack.encode([1, 5]), bad[1], msgspec.msgpack.encode([1, 6])):
                raw.send(payload)
            assert await inbox.receive() == ipc.Number(5)
            with pytest.raises(ProtocolViolation):
                await inbox.receive()
            assert await inbox.receive() == ipc.Number(6)
            good.send_nowait(ipc.Word("fine"))
            assert await inbox.receive() == ipc.Word("fine")
        finally:
            raw.close()

    run(main)


def test_receive_all_returns_the_good_before_it_raises_for_the_bad(ipc, run):
    async def main():
        inbox = ipc.inbox(capacity=3)
        path, listening_fd = ipc.listen()
        inbox.attach("x", path, listening_fd)
        raw = zmq.Context.instance().socket(zmq.PUSH)
        raw.setsockopt(zmq.LINGER, 0)
        raw.connect(f"ipc://{path}")
        try:
            for payload in (msgspec.msgpack.encode([1, 5]), b"\xc1", msgspec.msgpack.encode([1, 6])):
                raw.send(payload)
            seen = []
            while len(seen) < 3:
                await inbox.wait_message()
                try:
                    seen += [message.value for message in inbox.receive_all_nowait()]
                except ProtocolViolation:
                    seen.append("bad")
            assert seen == [5, "bad", 6]
        finally:
            raw.close()

    run(main)


def test_a_message_above_the_limit_is_refused_at_the_sender(folder, run):
    async def main():
        path = os.path.join(folder, "s")
        listener = bind_listener(path)
        inbox: Inbox = Inbox(Abort | Generate, 4, 100)
        outbox = ZmqOutbox(path, 4, 100)
        inbox.attach("frontend", path, listener.detach())
        # [11, "r", 1, <str 8 with n bytes>]: 1 + 1 + 2 + 1 + 2 + n bytes.
        outbox.send_nowait(Abort("r", 1, "x" * 93))
        with pytest.raises(MessageTooLarge, match=r"Abort has 101 bytes, the limit is 100") as caught:
            outbox.send_nowait(Abort("r", 1, "x" * 94))
        assert (caught.value.num_bytes, caught.value.max_bytes) == (101, 100)
        outbox.send_nowait(Abort("r", 2, ""))
        assert await inbox.receive() == Abort("r", 1, "x" * 93)
        assert await inbox.receive() == Abort("r", 2, "")
        outbox.close()
        inbox.close()

    run(main)


def test_a_foreign_message_above_the_limit_is_never_taken_in(folder, run):
    async def main():
        path = os.path.join(folder, "s")
        inbox: Inbox = Inbox(Abort, 4, 100)
        inbox.attach("frontend", path, bind_listener(path).detach())
        sockets = [zmq.Context.instance().socket(zmq.PUSH) for _ in range(2)]
        try:
            for raw, payload in zip(sockets, (bytes(101), msgspec.msgpack.encode(Abort("r", 1, ""))), strict=True):
                raw.setsockopt(zmq.LINGER, 0)
                raw.connect(f"ipc://{path}")
                raw.send(payload)
            assert await inbox.receive() == Abort("r", 1, "")
            with pytest.raises(WouldBlock):
                inbox.receive_nowait()
        finally:
            for raw in sockets:
                raw.close()
            inbox.close()

    run(main)


def test_the_real_messages_travel(folder, run):
    async def main():
        path = os.path.join(folder, "s")
        inbox: Inbox[Generate | Abort] = Inbox(FrontendToTokenizer, 4, 1 << 20)
        inbox.attach("frontend", path, bind_listener(path).detach())
        outbox: ZmqOutbox[Generate | Abort] = ZmqOutbox(path, 4, 1 << 20)
        sampling = SamplingParams(seed=2**64 - 1, temperature=0.5, max_tokens=7, stop=("\n", "§"))
        prompt = TokenPrompt([1, 2])
        sent = [
            Generate("r", 1, "frontend", "tokenizer", "scheduler", prompt, sampling, 5),
            Abort("r", 1, "gone"),
        ]
        for message in sent:
            outbox.send_nowait(message)
        assert [await inbox.receive(), await inbox.receive()] == sent
        outbox.close()
        inbox.close()

    run(main)


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the loop woke."""

    num_selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.num_selects += 1
        return super().select(timeout)


def test_an_idle_or_stalled_mailbox_does_not_wake_its_loop(ipc):
    """Full on all sides with everyone waiting: the loop sleeps until the one timer of the test goes off."""
    selector = CountingSelector()

    async def main() -> int:
        inbox = ipc.inbox(capacity=2)
        outbox = ipc.outbox(inbox, "a", capacity=2)
        idle = ipc.outbox(inbox, "idle")
        await ipc.num_accepted(outbox, lambda i: ipc.Number(i, bytes(1 << 18)), 100)
        waiting = asyncio.create_task(outbox.wait_room())
        await asyncio.sleep(0.1)
        before = selector.num_selects
        await asyncio.sleep(0.4)
        after = selector.num_selects
        waiting.cancel()
        idle.close()
        return after - before

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        assert runner.run(main()) <= 5


@pytest.mark.parametrize("length", [107, 108])
def test_the_length_of_a_path_is_checked(folder, length):
    path = os.path.join(folder, "x" * (length - len(folder) - 1))
    assert len(path) == length
    if length == 107:
        bind_listener(path).close()
        return
    with pytest.raises(ConfigError, match="108 bytes, the limit is 107"):
        bind_listener(path)


def test_the_limit_counts_bytes_and_not_characters(folder):
    with pytest.raises(ConfigError, match="the limit is 107"):
        bind_listener(os.path.join(folder, "ü" * 60))


def test_a_path_that_cannot_be_bound_says_why(folder):
    with pytest.raises(ConfigError, match="relative"):
        bind_listener("relative/path")
    with pytest.raises(StartFailed, match="No such file or directory"):
        bind_listener(os.path.join(folder, "missing", "s"))
    path = os.path.join(folder, "s")
    with bind_listener(path), pytest.raises(StartFailed, match="Address already in use"):
        bind_listener(path)


@pytest.mark.parametrize(("capacity", "max_bytes"), [(0, 1), (1, 0), (-1, 5)])
def test_bounds_are_at_least_one(folder, capacity, max_bytes):
    with pytest.raises(ValueError, match="at least 1"):
        Inbox(Abort, capacity, max_bytes)
    with pytest.raises(ValueError, match="at least 1"):
        ZmqOutbox(os.path.join(folder, "s"), capacity, max_bytes)
