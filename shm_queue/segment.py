"""The kernel objects of a board: one memfd with the slots, two eventfds per reader.

Memory, for each of num_slots + 1 slots: a header of four 64-bit words in the machine's byte order (epoch, sequence,
length, kind), then `slot_bytes` bytes of payload; a slot starts at a multiple of 64 bytes. Behind the slots, in a line
of its own, a word that only a sealer writes: where the stream ends, 0 until the board is sealed. The eventfds count (no
semaphore mode) and never block.

Words that must be stored whole are stored through a memoryview of 64-bit items, which copies one aligned item at once;
`struct.pack_into` clears its range first and, with a byte order given, stores byte by byte.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Mapping
from struct import Struct

from ..errors import ConfigError, NotEnoughMemory, ProtocolViolation
from .layout import BoardLayout
from .protocol import SlotHeader

HEADER = Struct("@QQQQ")
WORD_BYTES = 8
CACHE_LINE_BYTES = 64


def slot_stride(layout: BoardLayout) -> int:
    """Bytes from one slot to the next."""
    num_lines = -(-(HEADER.size + layout.slot_bytes) // CACHE_LINE_BYTES)
    return num_lines * CACHE_LINE_BYTES


def memory_bytes(layout: BoardLayout) -> int:
    """Bytes of the board's memory, the spare slot for the end-of-stream record and the sealer's line included."""
    return (layout.num_slots + 1) * slot_stride(layout) + CACHE_LINE_BYTES


def end_word(layout: BoardLayout) -> int:
    """Index of the sealer's word among the 64-bit words of the memory."""
    return (layout.num_slots + 1) * slot_stride(layout) // WORD_BYTES


def read_header(memory: mmap.mmap, start: int) -> SlotHeader:
    """The header of the slot that starts at byte `start`, as it stands."""
    return SlotHeader(*HEADER.unpack_from(memory, start))


def create_memory(name: str, num_bytes: int) -> int:
    """A zeroed memfd of fixed size whose pages are all there, so that no later store can fail. Returns its descriptor.

    Raises NotEnoughMemory. The kernel sets no limit of its own on a memfd and would kill processes to fill it, so what
    is available is looked up first.
    """
    available = _available_bytes()
    if num_bytes > available:
        raise _not_enough(name, num_bytes, f"{available:,} are available")
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        try:
            os.posix_fallocate(fd, 0, num_bytes)
        except OSError as error:
            raise _not_enough(name, num_bytes, f"posix_fallocate: {error.strerror}") from error
        fix_size(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def fix_size(fd: int) -> None:
    """Of a memfd that allows sealing. Nobody can shrink it under a mapping, which would end its readers by SIGBUS."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def create_board(layout: BoardLayout) -> dict[str, int]:
    """The descriptors of a new board, by the names and in the order of `layout.fd_names()`.

    They are the caller's: it passes them to the processes that attach, and closes them with `close_board`.
    Raises ConfigError for an impossible layout, NotEnoughMemory if the slots cannot be had.
    """
    for field in ("num_slots", "slot_bytes", "num_readers"):
        value = getattr(layout, field)
        if value < 1:
            raise ConfigError(f"board {layout.name}: {field} is {value}, it must be at least 1")
    if not 0 <= layout.epoch < 1 << 64:
        raise ConfigError(f"board {layout.name}: epoch is {layout.epoch}, it must be an unsigned 64-bit number")
    memory_name, *eventfd_names = layout.fd_names()
    fds = {memory_name: create_memory(memory_name, memory_bytes(layout))}
    try:
        for name in eventfd_names:
            fds[name] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    except BaseException:
        close_board(fds)
        raise
    return fds


def close_board(fds: Mapping[str, int]) -> None:
    """Close the descriptors that `create_board` made or a process was handed. Whoever has attached keeps its own."""
    for fd in fds.values():
        os.close(fd)


def map_memory(what: str, fd: int, num_bytes: int, *, is_writable: bool) -> mmap.mmap:
    """Map a memfd of exactly `num_bytes` bytes; `fd` stays the caller's. Raises ProtocolViolation for another size."""
    actual = os.fstat(fd).st_size
    if actual != num_bytes:
        raise ProtocolViolation(f"{what}: the memory has {actual:,} bytes, the layout says {num_bytes:,}")
    return mmap.mmap(fd, num_bytes, access=mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ)


def map_board(layout: BoardLayout, fds: Mapping[str, int], *, is_writable: bool) -> mmap.mmap:
    """Map the board's memory. Raises ProtocolViolation if it is missing or not of the layout's size."""
    fd = named(fds, f"{layout.name}.memory")
    return map_memory(f"board {layout.name}", fd, memory_bytes(layout), is_writable=is_writable)


class Attachment:
    """A process's own hold on a board: its mapping and duplicates of the descriptors that it uses.

    `words`: the mapping as 64-bit words. Duplicates, so that a writer and a reader in one process can share a board and
    let go of it one by one.
    """

    def __init__(self, layout: BoardLayout, fds: Mapping[str, int], readers: range, *, is_writable: bool) -> None:
        """Take doorbell and credit of `readers`.

        Raises ProtocolViolation if a descriptor is missing or the memory is not of the layout's size.
        """
        self.stride = slot_stride(layout)
        self.doorbells: tuple[int, ...] = ()
        self.credits: tuple[int, ...] = ()
        self.is_open = True
        self.memory = map_board(layout, fds, is_writable=is_writable)
        self.words = memoryview(self.memory).cast("Q")
        try:
            for reader in readers:
                self.doorbells += (os.dup(named(fds, f"{layout.name}.doorbell.{reader}")),)
                self.credits += (os.dup(named(fds, f"{layout.name}.credit.{reader}")),)
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Unmap and close; a second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self.words.release()
        self.memory.close()
        for fd in (*self.doorbells, *self.credits):
            os.close(fd)


def named(fds: Mapping[str, int], name: str) -> int:
    """The descriptor of that name. Raises ProtocolViolation if it is missing."""
    fd = fds.get(name)
    if fd is None:
        raise ProtocolViolation(f"descriptor {name!r} is missing; got {', '.join(fds) or 'none'}")
    return fd


def _available_bytes() -> int:
    """MemAvailable of the kernel."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise ProtocolViolation("/proc/meminfo has no MemAvailable")


def _not_enough(name: str, num_bytes: int, why: str) -> NotEnoughMemory:
    return NotEnoughMemory(
        f"{name} needs {num_bytes:,} bytes of shared memory: {why}",
        advice="lower [scheduler] max_num_batched_tokens, max_num_seqs or [model] max_model_len, or free memory",
    )
