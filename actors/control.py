"""The control socket between the supervisor and one child: msgspec messages with file descriptors beside them."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from types import UnionType
from typing import Generic, TypeVar

import msgspec

from ..errors import EndOfStream, MessageTooLarge, ProtocolViolation, WouldBlock

Sent = TypeVar("Sent", bound=msgspec.Struct)
Received = TypeVar("Received", bound=msgspec.Struct)

_MAX_BYTES = 128 * 1024
_MAX_FDS = 200


class ControlSocket(Generic[Sent, Received]):
    """One end of a SOCK_SEQPACKET pair. A message is at most 128 KiB; it may carry up to 200 descriptors."""

    def __init__(self, sock: socket.socket, received: type[Received] | UnionType) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)
        self._readable: asyncio.Future[None] | None = None
        """Of a task that waits in `receive`."""

    def send(self, message: Sent, fds: Sequence[int] = ()) -> None:
        """Send at once. A peer that has ended is no error here: its death is seen through its pidfd.

        After `close` nothing is sent. Raises WouldBlock if the peer has left hundreds of messages unread.
        """
        if self._socket.fileno() < 0:
            return
        data = self._encoder.encode(message)
        if len(data) > _MAX_BYTES:
            raise MessageTooLarge(type(message).__name__, len(data), _MAX_BYTES)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._socket.sendmsg([data], rights)
        except (BrokenPipeError, ConnectionResetError):
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                raise
            raise WouldBlock(f"the peer does not read its control socket: {error.strerror}") from None

    async def receive(self) -> tuple[Received, list[int]]:
        """The next message and its descriptors, which the caller owns now.

        Raises EndOfStream when the peer is gone, and after `close`, also for a task that waits already.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                return self.receive_nowait()
            except WouldBlock:
                self._readable = loop.create_future()
                loop.add_reader(self._socket.fileno(), _settle, self._readable)
                try:
                    await self._readable
                finally:
                    self._stop_waiting()

    def receive_nowait(self) -> tuple[Received, list[int]]:
        """As `receive`; raises WouldBlock if there is no message."""
        if self._socket.fileno() < 0:
            raise EndOfStream("this control socket is closed")
        try:
            data, fds, flags, _ = socket.recv_fds(self._socket, _MAX_BYTES, _MAX_FDS)
        except BlockingIOError:
            raise WouldBlock("no control message is waiting") from None
        except ConnectionResetError:
            raise EndOfStream("the control socket's peer is gone") from None
        if not data:
            raise EndOfStream("the control socket's peer is gone")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            for fd in fds:
                os.close(fd)
            raise ProtocolViolation("a control message was cut off")
        for fd in fds:
            os.set_inheritable(fd, False)
        return self._decoder.decode(data), fds

    def close(self) -> None:
        """Give the end up. May be called twice."""
        self._stop_waiting()
        self._socket.close()

    def _stop_waiting(self) -> None:
        """Before the socket is closed: its number may belong to another descriptor right after."""
        if self._readable is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            _settle(self._readable)
            self._readable = None


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def control_pair() -> tuple[socket.socket, socket.socket]:
    """(supervisor's end, child's end)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _MAX_BYTES)
    return ours, theirs
