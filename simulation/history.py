"""What happened in a simulation: the times of each request's tokens, how it ended, and gauges over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..mailbox.messages.steps import NewRow, StepResult
from ..scheduling.deltas import Outgoing
from ..scheduling.statistics import SchedulerStatistics
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


class _End(NamedTuple):
    reason: str
    num_tokens: int
    num_cached_tokens: int


class HistoryRecorder:
    """Takes in what a scheduler is told and what it sends.

    Of most steps only the bytes of the result are kept; what tokens they became is worked out at the end. A result of a
    run that was over is dropped by the scheduler, and the same position comes again in a later run, so the last result
    with a position is the one that counts, up to as many tokens as the request had when it ended.
    """

    def __init__(self, trace: Trace, gauge_ns: int, num_blocks: int) -> None:
        self._trace, self._gauge_ns, self._num_blocks = trace, gauge_ns, num_blocks
        self.next_gauge_ns = 0
        self._request_of_run: dict[int, int] = {}
        self._times_ns: list[int] = []
        """Of each result; of it the number of its runs, all runs and positions joined."""
        self._num_runs: list[int] = []
        self._runs: list[bytes] = []
        self._positions: list[bytes] = []
        self._ends: dict[int, _End] = {}
        self._gauges: list[tuple[int, int, int, float]] = []

    def place(self, new_rows: Sequence[NewRow]) -> None:
        """These rows stand in a plan for the first time."""
        for new in new_rows:
            self._request_of_run[new.run] = int(new.request_id)

    def take(self, now_ns: int, result: StepResult) -> None:
        """The scheduler gets this result."""
        self._times_ns.append(now_ns)
        self._num_runs.append(len(result.runs) // 8)
        self._runs.append(result.runs)
        self._positions.append(result.positions)

    def take_steady(self, times_ns: Sequence[int], runs: bytes, positions: npt.NDArray[np.int32]) -> None:
        """The scheduler gets a result of these runs at each of the times; `positions`: [n], of the first one."""
        num_steps = len(times_ns)
        self._times_ns += times_ns
        self._num_runs += [len(positions)] * num_steps
        self._runs.append(runs * num_steps)
        self._positions.append((positions + np.arange(num_steps, dtype=np.int32)[:, None]).tobytes())

    def end(self, outgoing: Outgoing) -> None:
        """Requests that ended are told here, once."""
        for deltas in outgoing.deltas.values():
            for row, finish in deltas.finishes.items():
                request_id, num_cached_tokens = deltas.request_ids[row], deltas.cached_tokens[row]
                self._ends[int(request_id)] = _End(finish.reason, finish.usage.completion_tokens, num_cached_tokens)
        for refusals in outgoing.refused.values():
            for refused in refusals:
                self._ends[int(refused.request_id)] = _End(REFUSED, 0, 0)

    def gauge(self, now_ns: int, num_running: int, num_waiting: int, num_free_blocks: int) -> None:
        """How it stands at `now_ns`."""
        self._gauges.append((now_ns, num_running, num_waiting, 1 - num_free_blocks / self._num_blocks))
        self.next_gauge_ns = now_ns + self._gauge_ns

    def finish(self, statistics: SchedulerStatistics, busy_ns: int) -> History:
        """Everything, when the run is over; each request has ended."""
        ends = [self._ends[index] for index in range(len(self._trace))]
        token_ns = self._token_times(np.array([end.num_tokens for end in ends], np.int64))
        requests = [
            RequestHistory(
                request.arrival_ns, request.tenant, request.num_prompt_tokens, times, end.reason, end.num_cached_tokens
            )
            for request, times, end in zip(self._trace, token_ns, ends, strict=True)
        ]
        times, running, waiting, shares = (list(column) for column in zip(*self._gauges, strict=True))
        gauges = Gauges(np.array(times), np.array(running), np.array(waiting), np.array(shares))
        return History(requests, gauges, statistics, busy_ns)

    def _token_times(self, num_tokens: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """When each token of each request came; `num_tokens`: of each request."""
        runs = np.frombuffer(b"".join(self._runs), "<i8")
        times = np.repeat(np.array(self._times_ns, np.int64), self._num_runs)
        request_of = np.zeros(max(self._request_of_run, default=0) + 1, np.int64)
        request_of[list(self._request_of_run)] = list(self._request_of_run.values())
        requests = request_of[runs]
        num_prompt_tokens = np.array([request.num_prompt_tokens for request in self._trace], np.int64)
        places = np.frombuffer(b"".join(self._positions), "<i4") - num_prompt_tokens[requests]
        does_count = places < num_tokens[requests]
        begins = np.cumsum(num_tokens) - num_tokens
        found = np.full(num_tokens.sum(), -1, np.int64)
        found[(begins[requests] + places)[does_count]] = times[does_count]  # of equal places the last one stays
        assert not len(found) or found.min() >= 0, "a token came in no result"
        return np.split(found, begins[1:])
