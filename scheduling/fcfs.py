"""Admission order: first come, first served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .request import Request, RequestKey


def first_come(waiting: Mapping[RequestKey, Request], among: Iterable[RequestKey] | None = None) -> Request | None:
    """The waiting request to admit next: the head of the queue, where preempted requests stand already; the first of
    `among` that waits, if it is given."""
    keys = waiting if among is None else (key for key in among if key in waiting)
    return next((waiting[key] for key in keys), None)
