"""Writes the journal of one scheduler. In the way of a step it only appends to lists; packing and writing come later.

take(now_ns, events)    before `Scheduler.step`, so that a call that raises is in the journal, too
planned(plan, encoded)  after the plan was published
write_due()             after the deltas were sent: packs every `BATCH_CALLS` calls, writes every `WRITE_BYTES`
flush()                 now and then, and at the end
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from .. import __version__
from ..mailbox.messages.steps import StepPlan
from ..scheduling.events import Event
from ..scheduling.limits import SchedulerLimits
from .files import RotatingFiles
from .frames import frame
from .packer import Packer, Taken
from .plan_chain import PlanChain
from .records import Checked, Header, Record, Snapshot

BATCH_CALLS = 128
"""About as many steps; what is said of a batch as a whole should weigh little."""
WRITE_BYTES = 64 * 1024


class JournalWriter:
    """The journal of a scheduler from its making on; it never raises for what happens to files.

    `take_snapshot` gives the scheduler's state between two calls; without it only the first file can be replayed.
    `failure` says why nothing is written any more; None while all is well.
    """

    def __init__(
        self,
        stem: Path,
        max_bytes: int,
        limits: SchedulerLimits,
        now_ns: int,
        take_snapshot: Callable[[], bytes] | None = None,
    ) -> None:
        self.failure: str | None = None
        self._limits, self._take_snapshot = msgspec.msgpack.encode(limits), take_snapshot
        self._run, self._number = os.urandom(8), 0
        self._packer = Packer(now_ns)
        self._taken = Taken()
        self._buffer = bytearray()
        self._files = RotatingFiles(stem, max_bytes)
        try:
            self._files.begin(frame(self._header()))
        except OSError as error:
            self._fail(error)

    @property
    def path(self) -> Path | None:
        """The file that is written."""
        return self._files.path

    @property
    def has_unwritten(self) -> bool:
        return bool(self._taken.now_ns or self._buffer)

    def take(self, now_ns: int, events: Sequence[Event]) -> None:
        """`Scheduler.step` is called with these; `events` must not be changed afterwards."""
        taken = self._taken
        taken.now_ns.append(now_ns)
        taken.events.append(events)

    def planned(self, plan: StepPlan, encoded: bytes) -> None:
        """The last call made this plan."""
        taken = self._taken
        taken.places.append(len(taken.now_ns) - 1)
        taken.plans.append(plan)
        taken.encoded.append(encoded)

    def checked(self) -> None:
        """`Scheduler.check_integrity` was called."""
        self._pack()
        self._add(Checked())

    def write_due(self) -> None:
        """Pack and write if there is enough of it; the scheduler is between two calls."""
        if len(self._taken.now_ns) >= BATCH_CALLS:
            self._pack()
            if len(self._buffer) >= WRITE_BYTES:
                self._write()

    def flush(self) -> None:
        """Pack and write all that there is; the scheduler is between two calls."""
        self._pack()
        self._write()

    def close(self) -> None:
        """Flush; also after a call that raised, which is then the journal's last."""
        self._pack()
        self._write(may_rotate=False)
        self._files.close()

    def _pack(self) -> None:
        taken = self._taken
        if taken.now_ns:
            self._taken = Taken()
            if self.failure is None:
                self._add(self._packer.pack(taken))

    def _add(self, record: Record) -> None:
        self._buffer += frame(record)

    def _write(self, *, may_rotate: bool = True) -> None:
        if not self._buffer or self.failure is not None:
            self._buffer.clear()
            return
        try:
            self._files.write(bytes(self._buffer))
            if may_rotate and self._files.is_due:
                self._rotate()
        except OSError as error:
            self._fail(error)
        self._buffer = bytearray()

    def _rotate(self) -> None:
        """Everything up to now is in the file: go on in a new one, which begins with the scheduler as it is."""
        packer = self._packer
        self._number += 1
        packer.chain = PlanChain(packer.chain.crc, packer.chain.digest())
        beginning = frame(self._header())
        if self._take_snapshot is not None:
            plans = [encoded for _, encoded in packer.in_flight]
            beginning += frame(Snapshot(self._take_snapshot(), plans))
        self._files.begin(beginning)

    def _header(self) -> Header:
        chain = self._packer.chain
        return Header(
            package_version=__version__,
            limits=self._limits,
            now_ns=self._packer.now_ns,
            wall_ns=time.time_ns(),
            run=self._run,
            number=self._number,
            crc=chain.crc,
            digest=chain.seed,
        )

    def _fail(self, error: OSError) -> None:
        self.failure = error.strerror or str(error)
        self._taken, self._buffer = Taken(), bytearray()
