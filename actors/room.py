"""Whether a frontend has room for a request: told at once, before anything is sent."""

from __future__ import annotations

from ..errors import InvalidRequest, Overloaded
from ..scheduling.statistics import SchedulerStatistics


def check_choices(num_choices: int, max_live_requests: int) -> None:
    """Raises InvalidRequest for more answers than ever fit."""
    if num_choices > max_live_requests:
        raise InvalidRequest(
            f"n is {num_choices:,}, and this engine holds {max_live_requests:,} answers at once "
            f"(max_queued_requests + max_num_seqs); ask for fewer",
            param="n",
        )


def check_frontend(num_live: int, max_live_requests: int) -> None:
    """Raises Overloaded for a frontend that holds as many requests, or questions, as may. Sessions that wait for input
    are not among them: they hold nothing below, and may stay long."""
    if num_live >= max_live_requests:
        raise Overloaded(
            f"this frontend holds {num_live:,} requests, as many as may (max_queued_requests + max_num_seqs); "
            f"try again later",
            code="queue_full",
        )


def check_sessions(num_open: int, max_sessions: int) -> None:
    """Raises Overloaded for a frontend that holds as many sessions, running or waiting for input, as may."""
    if num_open >= max_sessions:
        raise Overloaded(
            f"{num_open:,} sessions are open, as many as may (server.max_sessions); try again when one has ended",
            code="too_many_sessions",
        )


def check_queue(statistics: SchedulerStatistics, num_choices: int) -> None:
    """Raises Overloaded if the page shows the scheduler's queue full: it spares a request the way there. The page may
    be a step old: the scheduler has the last word."""
    has_page = statistics.num_blocks > 0
    if has_page and statistics.num_queued_room < num_choices:
        room = f"it has room for {statistics.num_queued_room:,} requests more, this one needs {num_choices:,}"
        raise Overloaded(f"the queue is full: {room} (max_queued_requests); try again later", code="queue_full")
