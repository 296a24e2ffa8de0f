"""Any interleaving of sends, receives, detaches and waits keeps the order of each sender and the bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import WouldBlock
from callboard.mailbox import Inbox, LocalOutbox, ZmqOutbox, bind_listener

SENDERS = ("a", "b", "c")
PADDING = bytes(100_000)
"""Larger than the kernel's buffers are asked to be, so that few messages hide in them."""


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    sender: str
    life: int
    value: int
    padding: bytes


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(SENDERS)),
        st.tuples(st.just("receive"), st.just("")),
        st.tuples(st.just("receive_all"), st.just("")),
        st.tuples(st.just("turn"), st.just("")),
        st.tuples(st.just("detach"), st.sampled_from(SENDERS)),
    ),
    max_size=80,
)


class Model:
    """Drives one inbox; knows what each life of each sender has sent and what has come of it."""

    def __init__(self, transport: str, folder: str, capacity: int) -> None:
        self.transport, self.folder, self.capacity = transport, folder, capacity
        self.inbox: Inbox[Item] = Inbox(Item, capacity, 1 << 20)
        self.outboxes: dict[str, LocalOutbox[Item] | ZmqOutbox[Item]] = {}
        self.life = dict.fromkeys(SENDERS, 0)
        self.num_sent = dict.fromkeys(SENDERS, 0)
        self.num_got = dict.fromkeys(SENDERS, 0)
        for sender in SENDERS:
            self.attach(sender)

    def attach(self, sender: str) -> None:
        if self.transport == "local":
            self.outboxes[sender] = LocalOutbox(self.inbox, sender)
            return
        path = os.path.join(self.folder, f"{sender}.{self.life[sender]}")
        listening_fd = bind_listener(path).detach()
        self.outboxes[sender] = ZmqOutbox(path, self.capacity, 1 << 20)
        self.inbox.attach(sender, path, listening_fd)

    def send(self, sender: str) -> None:
        item = Item(sender, self.life[sender], self.num_sent[sender], PADDING)
        try:
            self.outboxes[sender].send_nowait(item)
            self.num_sent[sender] += 1
        except WouldBlock:
            assert self.num_waiting() >= self.capacity

    def num_waiting(self) -> int:
        return sum(self.num_sent[sender] - self.num_got[sender] for sender in SENDERS)

    def take(self, item: Item) -> None:
        assert (item.life, item.value) == (self.life[item.sender], self.num_got[item.sender])
        self.num_got[item.sender] += 1

    def detach(self, sender: str) -> None:
        self.inbox.detach(sender)
        self.outboxes[sender].close()
        self.life[sender] += 1
        self.num_sent[sender] = self.num_got[sender] = 0
        self.attach(sender)

    def check(self) -> None:
        assert self.inbox.statistics().num_waiting <= self.capacity
        hidden = 0 if self.transport == "local" else len(SENDERS) * (2 * self.capacity + 4)
        assert self.num_waiting() <= self.capacity + hidden

    async def run(self, actions: list[tuple[str, str]]) -> None:
        for action, sender in actions:
            match action:
                case "send":
                    self.send(sender)
                case "receive":
                    with contextlib.suppress(WouldBlock):
                        self.take(self.inbox.receive_nowait())
                case "receive_all":
                    for item in self.inbox.receive_all_nowait():
                        self.take(item)
                case "turn":
                    await asyncio.sleep(0)
                case "detach":
                    self.detach(sender)
            self.check()
        while self.num_waiting():
            self.take(await self.inbox.receive())

    def close(self) -> None:
        for outbox in self.outboxes.values():
            outbox.close()
        self.inbox.close()


@pytest.mark.parametrize("transport", ["local", "ipc"])
def test_order_and_bound_hold_in_every_interleaving(transport):
    num_examples = 150 if transport == "local" else 40

    @settings(max_examples=num_examples, deadline=None)
    @given(actions=ACTIONS, capacity=st.integers(1, 4))
    def check(actions: list[tuple[str, str]], capacity: int) -> None:
        async def main(folder: str) -> None:
            model = Model(transport, folder, capacity)
            try:
                async with asyncio.timeout(60):
                    await model.run(actions)
            finally:
                model.close()

        with tempfile.TemporaryDirectory(prefix="cb") as folder:
            asyncio.run(main(folder))

    check()
