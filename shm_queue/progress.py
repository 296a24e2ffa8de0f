"""The progress page: one line of aligned 64-bit words per process, in a memfd that every process maps.

Advisory only. Each word is stored and loaded whole, but there is no order between words: nothing may be decided from
two fields of a line together (a new `step` may be seen beside an old `time_ns`, a counter of `statistics` beside an
older one). It works on a process that is frozen or dead, and costs its writer no syscall.
"""

from __future__ import annotations

import enum
import time
import zlib
from functools import cache
from itertools import islice
from typing import TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from .segment import create_memory, map_memory

NUM_STATISTICS = 64
FIRST_PHASE_TIME = 8
FIRST_STATISTIC = 16
LINE_WORDS = FIRST_STATISTIC + NUM_STATISTICS
WORD_BYTES = 8

StatisticsT = TypeVar("StatisticsT", bound=msgspec.Struct)


class Phase(enum.IntEnum):
    """What a process says that it is doing."""

    STARTING = 0
    """Also what a line says that nobody has written to yet."""
    LOADING = 1
    WARMING = 2
    SERVING = 3
    STEPPING = 4
    """A step is on the device."""
    IDLE = 5
    WAITING = 6
    """A scheduler that has no worker."""


START_PHASES = (Phase.STARTING, Phase.LOADING, Phase.WARMING)
"""Of a process that cannot serve yet; they may take long."""


class Word:
    """Descriptor of one unsigned word of a line."""

    def __init__(self, index: int) -> None:
        self._index = index

    @overload
    def __get__(self, line: None, owner: type[ProgressLine]) -> Word: ...
    @overload
    def __get__(self, line: ProgressLine, owner: type[ProgressLine]) -> int: ...
    def __get__(self, line: ProgressLine | None, owner: type[ProgressLine]) -> int | Word:
        return self if line is None else int(line.words[self._index])

    def __set__(self, line: ProgressLine, value: int) -> None:
        line.words[self._index] = value


def mark_of(request_id: str) -> int:
    """What `working_on` says of a request: 33 bits, never 0."""
    return zlib.crc32(request_id.encode()) | 1 << 32


class ProgressLine:
    """One process's line. One process writes it, any may read; it keeps the page mapped."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        """words: [LINE_WORDS] uint64, a view of the page."""
        self.words = words

    pid = Word(1)
    incarnation = Word(2)
    step = Word(3)
    """Last step begun."""
    sequence = Word(4)
    """Last sequence read from its board; 0: none."""
    time_ns = Word(5)
    """CLOCK_MONOTONIC of the last progress; 0: none yet."""
    stepping_since_ns = Word(6)
    """CLOCK_MONOTONIC when the step on the device began; 0: there is none. One word, so that it alone tells a step
    that hangs from a process that idles."""

    heartbeat_ns = Word(7)
    """CLOCK_MONOTONIC when the process's event loop last turned; 0: not yet."""

    working_on = Word(15)
    """A mark (`mark_of`) of the request whose prompt is in native code now; 0: none. It outlives the process, and says
    which request it died of."""

    @property
    def phase(self) -> Phase:
        return Phase(int(self.words[0]))

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.words[0] = phase

    def mark(self, *, phase: Phase | None = None, step: int | None = None, sequence: int | None = None) -> None:
        """Store what is given and stamp the time."""
        now_ns = time.monotonic_ns()
        if phase is not None:
            if self.words[FIRST_PHASE_TIME + phase] == 0:
                self.words[FIRST_PHASE_TIME + phase] = now_ns
            self.words[0] = phase
            self.stepping_since_ns = now_ns if phase is Phase.STEPPING else 0
        if step is not None:
            self.step = step
        if sequence is not None:
            self.sequence = sequence
        self.time_ns = now_ns

    def begin(self) -> None:
        """A new incarnation starts: everything but its phase and the time is zero."""
        self.words[:] = 0
        self.mark(phase=Phase.STARTING)

    def phase_times_ns(self) -> dict[Phase, int]:
        """CLOCK_MONOTONIC when this incarnation first came into each phase that it has been in, in that order."""
        times = {phase: int(self.words[FIRST_PHASE_TIME + phase]) for phase in Phase}
        return dict(sorted(((p, t) for p, t in times.items() if t), key=lambda entry: entry[1]))

    def set_statistics(self, statistics: msgspec.Struct) -> None:
        """Store the fields of a struct, in their order: unsigned ints, and tuples of them as long as their defaults, of
        at most NUM_STATISTICS words together.

        Raises ValueError if there are more, OverflowError if one is negative or over 64 bits.
        """
        fields = msgspec.structs.astuple(statistics)
        words = [word for value in fields for word in (value if isinstance(value, tuple) else (value,))]
        values = np.array(words, dtype=np.uint64)
        if len(values) > NUM_STATISTICS:
            raise ValueError(f"{type(statistics).__name__} takes {len(values)} words, a line has {NUM_STATISTICS}")
        self.words[FIRST_STATISTIC : FIRST_STATISTIC + len(values)] = values

    def read_statistics(self, statistics_type: type[StatisticsT]) -> StatisticsT:
        """The struct last stored with `set_statistics`; zeros if none was."""
        words = iter(self.words[FIRST_STATISTIC:].tolist())
        widths = _widths(statistics_type)
        return statistics_type(*[next(words) if width is None else tuple(islice(words, width)) for width in widths])


@cache
def _widths(statistics_type: type[msgspec.Struct]) -> tuple[int | None, ...]:
    """Of each field: how many words its tuple has; None: it is one number."""
    defaults = [field.default for field in msgspec.structs.fields(statistics_type)]
    return tuple(len(default) if isinstance(default, tuple) else None for default in defaults)


def create_progress_page(num_lines: int) -> int:
    """A new page, all zeros; returns its memfd, which is the caller's. Raises NotEnoughMemory."""
    return create_memory("progress", num_lines * LINE_WORDS * WORD_BYTES)


class ProgressPage:
    """A mapped page. It is unmapped when the page and all its lines are gone; `fd` stays the caller's.

    Raises ProtocolViolation if the memory is not that of `num_lines` lines.
    """

    def __init__(self, fd: int, num_lines: int, *, is_writable: bool = True) -> None:
        memory = map_memory("progress page", fd, num_lines * LINE_WORDS * WORD_BYTES, is_writable=is_writable)
        self.num_lines = num_lines
        self._words: npt.NDArray[np.uint64] = np.frombuffer(memory, dtype="<u8").reshape(num_lines, LINE_WORDS)

    def line(self, index: int) -> ProgressLine:
        """Line `index`, 0..num_lines - 1. Raises IndexError."""
        if not 0 <= index < self.num_lines:
            raise IndexError(f"the progress page has {self.num_lines} lines, there is no line {index}")
        return ProgressLine(self._words[index])
