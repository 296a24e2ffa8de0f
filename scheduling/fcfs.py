"""Admission order: first come, first served."""

from __future__ import annotations

from collections.abc import Mapping

from .request import Request, RequestKey


def first_come(waiting: Mapping[RequestKey, Request]) -> Request | None:
    """The waiting request to admit next: the head of the queue. Preempted requests stand there already."""
    return next(iter(waiting.values()), None)
