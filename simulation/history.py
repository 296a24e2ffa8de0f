"""What happened in a simulation: the times of each request's tokens, how it ended, and gauges over time."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..scheduling import SchedulerStatistics
from ..scheduling.deltas import Outgoing
from .trace import Trace

REFUSED = "refused"
"""How a request ended that the queue had no room for; all others end with a finish reason."""


class RequestHistory(NamedTuple):
    """One request. Times since the trace's beginning."""

    arrival_ns: int
    tenant: str
    num_prompt_tokens: int
    token_ns: npt.NDArray[np.int64]
    """When each token came."""
    reason: str
    """Finish reason, or REFUSED."""
    num_cached_tokens: int
    """Of the prompt, at first admission."""


class Gauges(msgspec.Struct, frozen=True):
    """Parallel arrays over time."""

    time_ns: npt.NDArray[np.int64]
    num_running: npt.NDArray[np.int64]
    num_waiting: npt.NDArray[np.int64]
    kv_share: npt.NDArray[np.float64]
    """Blocks in use, of all."""


class History(msgspec.Struct, frozen=True):
    """A whole run."""

    requests: list[RequestHistory]
    """In the order of the trace."""
    gauges: Gauges
    statistics: SchedulerStatistics
    """The scheduler's own, at the end."""
    busy_ns: int
    """Time that the device computed."""


class HistoryRecorder:
    """Takes in what a scheduler sends and what it says of itself."""

    def __init__(self, trace: Trace, gauge_ns: int) -> None:
        self._trace, self._gauge_ns = trace, gauge_ns
        self.next_gauge_ns = 0
        self._token_ns = {str(index): array("q") for index in range(len(trace))}
        self._ends: dict[str, tuple[str, int]] = {}
        self._gauges: list[tuple[int, int, int, float]] = []

    def record(self, now_ns: int, outgoing: Outgoing) -> None:
        """What leaves at `now_ns`."""
        token_ns = self._token_ns
        for deltas in outgoing.deltas.values():
            for request_id, token_ids in zip(deltas.request_ids, deltas.token_ids, strict=False):
                if len(token_ids) == 1:
                    token_ns[request_id].append(now_ns)
                else:
                    token_ns[request_id].extend([now_ns] * len(token_ids))
            for row, finish in deltas.finishes.items():
                self._ends[deltas.request_ids[row]] = (finish.reason, deltas.cached_tokens[row])
        for refusals in outgoing.refused.values():
            for refused in refusals:
                self._ends[refused.request_id] = (REFUSED, 0)

    def gauge(self, now_ns: int, statistics: SchedulerStatistics) -> None:
        """How it stands at `now_ns`."""
        used = 1 - statistics.num_free_blocks / statistics.num_blocks
        self._gauges.append((now_ns, statistics.num_running, statistics.num_waiting, used))
        self.next_gauge_ns = now_ns + self._gauge_ns

    def finish(self, statistics: SchedulerStatistics, busy_ns: int) -> History:
        """Everything, when the run is over; each request has ended."""
        requests = []
        for index, request in enumerate(self._trace):
            reason, num_cached_tokens = self._ends[str(index)]
            token_ns = np.frombuffer(self._token_ns[str(index)], np.int64)
            requests.append(
                RequestHistory(
                    request.arrival_ns, request.tenant, request.num_prompt_tokens, token_ns, reason, num_cached_tokens
                )
            )
        times, running, waiting, shares = (list(column) for column in zip(*self._gauges, strict=True))
        gauges = Gauges(np.array(times), np.array(running), np.array(waiting), np.array(shares))
        return History(requests, gauges, statistics, busy_ns)
