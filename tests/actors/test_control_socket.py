"""Control sockets: messages with descriptors, ends, and closing under a task that waits."""

from __future__ import annotations

import asyncio
import os

import pytest

from callboard.actors.control import ControlSocket, control_pair
from callboard.errors import EndOfStream, MessageTooLarge, WouldBlock
from callboard.mailbox.messages.control import Attach, Drained, Ending, Failed, Shutdown


def sockets() -> tuple[ControlSocket, ControlSocket]:  # type: ignore[type-arg]
    ours, theirs = control_pair()
    return ControlSocket(ours, Drained | Failed), ControlSocket(theirs, Attach | Ending | Shutdown)


async def test_descriptors_arrive_in_order_and_do_not_reach_grandchildren() -> None:
    supervisor, child = sockets()
    pairs = [os.pipe() for _ in range(3)]
    supervisor.send(Attach((), ("a", "b", "c")), [write for _, write in pairs])
    message, fds = await child.receive()
    assert message.fds == ("a", "b", "c")
    for (read, _), fd in zip(pairs, fds, strict=True):
        assert not os.get_inheritable(fd)
        os.write(fd, b"x")
        assert os.read(read, 1) == b"x"
    for fd in (*fds, *(end for pair in pairs for end in pair)):
        os.close(fd)
    supervisor.close()
    child.close()


async def test_what_a_peer_said_last_is_read_before_its_end() -> None:
    supervisor, child = sockets()
    child.send(Failed("control", "tokenizer", "start", "cause", ""))
    child.send(Drained("control"))
    child.close()
    assert supervisor.receive_nowait()[0].cause == "cause"
    assert (await supervisor.receive())[0] == Drained("control")
    with pytest.raises(EndOfStream):
        await supervisor.receive()
    supervisor.send(Shutdown())  # nobody reads it
    supervisor.close()


async def test_closing_ends_a_task_that_waits_and_later_messages_are_dropped() -> None:
    supervisor, child = sockets()
    with pytest.raises(WouldBlock):
        supervisor.receive_nowait()
    waiting = asyncio.ensure_future(supervisor.receive())
    await asyncio.sleep(0)
    supervisor.close()
    with pytest.raises(EndOfStream):
        await waiting
    supervisor.close()
    supervisor.send(Shutdown())
    with pytest.raises(EndOfStream):
        await child.receive()
    child.close()


async def test_a_peer_that_reads_nothing_is_no_wait_without_end() -> None:
    supervisor, child = sockets()
    with pytest.raises(WouldBlock, match="does not read its control socket"):
        for _ in range(100_000):
            supervisor.send(Ending("x" * 1000))
    message, _ = await child.receive()
    assert message == Ending("x" * 1000)
    supervisor.close()
    child.close()


async def test_a_message_over_the_limit_is_named() -> None:
    supervisor, child = sockets()
    with pytest.raises(MessageTooLarge, match="Ending has"):
        supervisor.send(Ending("x" * 200_000))
    supervisor.close()
    child.close()
