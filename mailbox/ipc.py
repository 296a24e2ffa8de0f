"""The mailbox transport between two processes of a host: a ZeroMQ PUSH/PULL pair over a Unix socket.

The supervisor binds the socket of every link (`bind_listener`) before it starts any child, so a sender may connect and
send before the receiver runs. The path names the receiver's incarnation: nothing is ever reconnected, a new life of the
receiver is a new link.

libzmq's descriptor (`zmq.FD`) is watched by the event loop; it tells that something happened, not what. It falls silent
only when the socket's pending commands were taken, and it is silent about messages that were there before: so a reader
receives until EAGAIN, and whoever stops earlier stops watching, too, or the loop would spin.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import zmq

from ..errors import ConfigError, EndOfStream, MessageTooLarge, StartFailed, WouldBlock
from .waiters import Waiters

M = TypeVar("M", bound=msgspec.Struct)

MAX_PATH_BYTES = 107
"""`sockaddr_un.sun_path` has 108 bytes on Linux, the last one is a NUL."""
KERNEL_BUFFER_BYTES = 64 * 1024
"""Asked for each side of a link, so that the number of messages which hide in the kernel is bounded and small."""


def bind_listener(path: str) -> socket.socket:
    """A listening Unix stream socket at `path`, to be handed to `Inbox.attach` of the receiver as a descriptor.

    Raises ConfigError if the path does not fit into a socket address, StartFailed if it cannot be bound.
    """
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_PATH_BYTES:
        raise ConfigError(
            f"socket path {path!r} has {num_bytes} bytes, the limit is {MAX_PATH_BYTES}",
            advice="set TMPDIR to a shorter path (the run directory is made there), or give the actors shorter names",
        )
    if not os.path.isabs(path):
        raise ConfigError(f"socket path {path!r} is relative, an absolute path is needed")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(path)
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise StartFailed(f"cannot bind the socket {path!r}: {error.strerror}", phase="sockets") from error
    return listener


class ZmqSource:
    """The receiving socket of one sender: PULL on a socket that is bound and listens already."""

    def __init__(self, sender: str, path: str, listening_fd: int, capacity: int, max_bytes: int) -> None:
        self.sender = sender
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, capacity)
        self._socket.setsockopt(zmq.RCVBUF, KERNEL_BUFFER_BYTES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, 0)
        self._socket.setsockopt(zmq.USE_FD, listening_fd)
        try:
            self._socket.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            self._socket.close()
            raise StartFailed(f"cannot listen on the socket {path!r}: {error}", phase="sockets") from error
        self._fd: int = self._socket.get(zmq.FD)
        self._loop: asyncio.AbstractEventLoop | None = None

    def receive_nowait(self) -> bytes | None:
        """The next message, or None. After None the descriptor becomes readable when there is more."""
        try:
            return self._socket.recv(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def watch(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Call `callback` whenever something may have arrived."""
        self._loop = loop
        loop.add_reader(self._fd, callback)

    def unwatch(self) -> None:
        """Stop calling back."""
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None

    def close(self) -> None:
        """Drop what is unread."""
        self.unwatch()
        self._socket.close()


class ZmqOutbox(Generic[M]):
    """Sends to the inbox that is attached, or will be, to the socket which is bound at `path` already.

    `capacity`: messages that may wait in this process. `max_bytes`: largest encoded message. Both are at least 1.
    """

    def __init__(self, path: str, capacity: int, max_bytes: int) -> None:
        if capacity < 1 or max_bytes < 1:
            raise ValueError(f"capacity {capacity} and max_bytes {max_bytes} must be at least 1")
        self._max_bytes = max_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._waiters = Waiters()
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, capacity)
        self._socket.setsockopt(zmq.SNDBUF, KERNEL_BUFFER_BYTES)
        # The receiver may load a model before it attaches: the handshake has no deadline, and is never begun anew.
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._socket.connect(f"ipc://{path}")
        self._fd: int = self._socket.get(zmq.FD)

    def send_nowait(self, message: M) -> None:
        """Encode and send; WouldBlock when `capacity` messages wait, MessageTooLarge, EndOfStream after `close`."""
        self._check_open()
        payload = self._encoder.encode(message)
        if len(payload) > self._max_bytes:
            raise MessageTooLarge(type(message).__name__, len(payload), self._max_bytes)
        try:
            self._socket.send(payload, zmq.DONTWAIT)
        except zmq.Again:
            # libzmq looks for room at most once a millisecond unless it is asked.
            if not self._has_room():
                raise WouldBlock(f"no room for {type(message).__name__}") from None
            self._socket.send(payload, zmq.DONTWAIT)
        if self._waiters and self._has_room():
            # Sending took the signal that those who wait have been waiting for.
            self._waiters.wake_all()

    async def wait_room(self) -> None:
        """Wait until a message can be queued; EndOfStream after `close`, also for those who wait already."""
        loop = asyncio.get_running_loop()
        self._check_open()
        while not self._has_room():
            if not self._waiters:
                loop.add_reader(self._fd, self._wake_if_room)
            try:
                await self._waiters.wait()
            finally:
                if not self._waiters and not self._socket.closed:
                    loop.remove_reader(self._fd)
            self._check_open()

    def close(self) -> None:
        """Give the end up; what has not left this process is lost."""
        if self._socket.closed:
            return
        if self._waiters:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._waiters.wake_all()
        self._socket.close()

    def _check_open(self) -> None:
        if self._socket.closed:
            raise EndOfStream("this outbox is closed")

    def _has_room(self) -> bool:
        """Asks libzmq; this takes the socket's pending commands, and with them the signal of its descriptor."""
        return bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLOUT)

    def _wake_if_room(self) -> None:
        if self._has_room():
            self._waiters.wake_all()
