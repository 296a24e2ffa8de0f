"""What stands in a journal: every input of one scheduler, so that it can be run again.

A file is a `frames.PREFIX`, then records, each in a frame: one `Header`, a `Snapshot` unless it begins with a new
scheduler, then `Calls` and `Checked` in the order in which they happened.

A `StepResult` is mostly known beforehand: its epoch and step are those of the oldest plan in flight, its runs and
positions what that plan asked for. Where this is so they are left out, and filled in again from the plan that the
replayed scheduler makes. So a step costs some 50 bytes and its token ids.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from ..scheduling.events import Event

VERSION = 3
"""Raised whenever an older reader could not read a newer file, or would read it wrongly."""


class Header(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=70):
    """The first record of a file."""

    package_version: str
    limits: bytes
    """`SchedulerLimits` as a msgpack map."""
    now_ns: int
    """When the file began, by the clock of `Scheduler.step`."""
    wall_ns: int
    """Nanoseconds since 1970 at that time."""
    run: bytes
    """Random; the same in all files of one scheduler's life."""
    number: int
    """Of the file within that life, from 0."""
    crc: int
    """Of the chain over all plans before."""
    digest: bytes
    """Over all plans before; empty in the first file."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=71):
    """The scheduler as it was when the file began."""

    state: bytes
    """Of `Scheduler.snapshot`."""
    plans: list[bytes]
    """Encoded plans in flight, oldest first: their results' missing fields are filled in from them."""


class EventKind(IntEnum):
    """How an event stands in `Calls`."""

    WHOLE = 0
    """In `events`."""
    PLAIN = 1
    """A result with the runs and positions of its plan and nothing but tokens and times: in the columns."""
    STRIPPED = 2
    """In `events`, a result without runs and positions, which are those of its plan."""


class Calls(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=72):
    """Calls of `Scheduler.step`, n of them with p plans made and k plain results: columns."""

    now_ns: bytes
    """int64 [n]"""
    num_events: list[int]
    """[n]"""
    kinds: bytes
    """One `EventKind` an event."""
    events: list[Event]
    """Those that are not plain."""
    start_ns: bytes
    """int64 [k]"""
    end_ns: bytes
    """int64 [k]"""
    num_plans_waiting: list[int]
    """[k]"""
    token_ids: list[bytes]
    """[k] int32"""
    plan_calls: list[int]
    """[p]: which of the calls made the plan, rising."""
    crcs: bytes
    """uint32 [p]: `PlanChain.crc` behind each plan."""
    num_rows: list[int]
    """[p]"""
    num_new_rows: list[int]
    """[p]"""
    digest: bytes
    """BLAKE2b over the file's first digest and all `crcs` of the file up to here."""


class Checked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=73):
    """`Scheduler.check_integrity` was called, which gives leaked blocks back."""


Record = Header | Snapshot | Calls | Checked
