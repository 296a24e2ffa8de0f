"""Names leaks: who took a unit that nobody gives back any more, at which step, by which event, and how that one ended.

A *unit* is a KV block or a row. Its holder is a run, or a transfer, which is written as a negative run. `leave` is
called before the request's move, the other hooks behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from .ended_runs import EndedRun, EndedRuns
from .holdings import Holding, HoldingEvent, Holdings, Units
from .request import Request, RequestKey
from .row_arrays import Bools, Int32s, Int64s

MAX_LOGGED = 20
"""Leaks of one check that are worth a line of the log each."""


class Leak(msgspec.Struct, frozen=True, gc=False):
    """One reference to a unit that had no owner any more. It has been given back."""

    kind: Literal["block", "row"]
    unit: int
    owner: RequestKey | None
    """(request_id, choice); None: it ended too many runs ago, or nobody ever took the unit in the open."""
    run: int | None
    """None: a transfer had it, or `owner` is None."""
    step: int
    """The next to be planned when it was taken."""
    event: str
    """admission, growth, drafts, transfer, shared_prefix; empty if nobody ever took it in the open."""
    owner_ended: str
    """How the run ended: a finished state, `preempted (cause)`, `waits for input`; empty if it goes on."""

    def fields(self) -> dict[str, object]:
        """For a line of the log; without what is not known."""
        request_id, choice = self.owner or (None, None)
        fields = {"kind": self.kind, "unit": self.unit, "request": request_id, "choice": choice, "run": self.run}
        fields |= {"step": self.step, "event": self.event or None, "ended": self.owner_ended or None}
        return {name: value for name, value in fields.items() if value is not None}


def transfer_run(transfer: int) -> int:
    """What a transfer is named by among runs."""
    return -1 - transfer


class LeakLedger:
    """Kept beside the pool and the rows of one scheduler."""

    def __init__(self, num_blocks: int, max_num_seqs: int) -> None:
        self._blocks = Holdings(num_blocks)
        self._rows = Holdings(max_num_seqs)
        self._ended = EndedRuns()
        self._loads: dict[RequestKey, int] = {}
        """Transfers that hold blocks for a request that has no run yet, as runs."""

    # What changes hands

    def admit(self, request: Request, num_found: int, step: int) -> None:
        """It took a row, and all its blocks: the first `num_found` from the cache, or from its transfer, if it had one.
        `step`, here and below: the next to be planned."""
        run, row, blocks = request.run, request.row, request.block_ids
        assert run is not None and row is not None, f"{request.key} does not run"
        self._rows.take([row], run, step, HoldingEvent.ADMISSION)
        if self._loads.pop(request.key, None) is None:
            self._blocks.share(blocks[:num_found], run, step)
        else:
            self._blocks.take(blocks[:num_found], run, step, HoldingEvent.TRANSFER)
        self._blocks.take(blocks[num_found:], run, step, HoldingEvent.ADMISSION)

    def grow(
        self, block_ids: Units, runs: Int64s, num_blocks: Int32s, has_drafts: Bools | None, step: int | Int64s
    ) -> None:
        """Running requests took more blocks: runs[i] the next num_blocks[i]; `has_drafts`: [n], None: none has. `step`
        may be one a block."""
        holders = np.repeat(runs, num_blocks)
        if has_drafts is None:
            self._blocks.take(block_ids, holders, step, HoldingEvent.GROWTH)
        else:
            events = np.where(has_drafts, int(HoldingEvent.DRAFTS), int(HoldingEvent.GROWTH))
            self._blocks.take(block_ids, holders, step, np.repeat(events, num_blocks))

    def load(self, transfer: int, key: RequestKey, block_ids: Sequence[int], step: int) -> None:
        """A transfer took blocks for a waiting request."""
        run = self._loads[key] = transfer_run(transfer)
        self._blocks.take(block_ids, run, step, HoldingEvent.TRANSFER)

    def leave(self, request: Request, how: str) -> None:
        """It ends, or loses row and blocks (`how`: as in `EndedRun`); before they are given back."""
        if request.run is not None and request.row is not None:
            self._rows.give_back([request.row], request.run)
            self._blocks.give_back(request.block_ids, request.run)
            self._ended.add(request.run, request.key, how)
        else:
            self.unload(request, how)

    def end_load(self, transfer: int, block_ids: Sequence[int]) -> None:
        """The transfer gives back blocks that it did not fill, or that its request left to it."""
        self._blocks.give_back(block_ids, transfer_run(transfer))

    def unload(self, request: Request, how: str) -> None:
        """A waiting request gives up what was loaded for it, or does not want what is on its way; nothing if there is
        nothing."""
        run = self._loads.pop(request.key, None)
        if run is not None:
            self._blocks.give_back(request.block_ids, run)
            self._ended.add(run, request.key, how)

    # What was lost

    def name(
        self,
        blocks: Sequence[int],
        rows: Sequence[int],
        requests: Iterable[Request],
        loading: Mapping[int, Sequence[int]],
    ) -> list[Leak]:
        """The leaks behind leaked `blocks`, each as often as it was referred to without an owner, and `rows`. They have
        been given back, and are named once.

        `requests`: all live ones; `loading`: block ids by transfer, of those under way.
        """
        live: dict[int, RequestKey] = {}
        tables: dict[int, set[int]] = {transfer_run(transfer): set(ids) for transfer, ids in loading.items()}
        lost = set(blocks)
        for request in requests:
            run = request.run if request.run is not None else self._loads.get(request.key)
            if run is not None:
                live[run] = request.key
                tables.setdefault(run, set()).update(lost.intersection(request.block_ids))
        leaks = []
        for unit in sorted(lost):
            owners = {run for run, table in tables.items() if unit in table}
            leaks += self._leaks("block", unit, self._blocks, owners, blocks.count(unit), live)
        for row in rows:
            leaks += self._leaks("row", row, self._rows, set(), 1, live)
        return leaks

    def _leaks(
        self,
        kind: Literal["block", "row"],
        unit: int,
        holdings: Holdings,
        owners: set[int],
        num_lost: int,
        live: Mapping[int, RequestKey],
    ) -> list[Leak]:
        found = holdings.lost_by(unit, owners, num_lost)
        for holding in found:
            holdings.give_back([unit], holding.run)
        leaks = [self._leak(kind, unit, holding, live) for holding in found]
        unknown = Leak(kind, unit, owner=None, run=None, step=0, event="", owner_ended="")
        return leaks + [unknown] * (num_lost - len(found))

    def _leak(self, kind: Literal["block", "row"], unit: int, holding: Holding, live: Mapping[int, RequestKey]) -> Leak:
        run = holding.run
        ended = self._ended.find(run)
        if ended is None and run in live:
            ended = EndedRun(live[run], "")
        return Leak(
            kind=kind,
            unit=unit,
            owner=None if ended is None else ended.key,
            run=run if run >= 0 and ended is not None else None,
            step=holding.step,
            event=holding.event.name.lower(),
            owner_ended="" if ended is None else ended.how,
        )
