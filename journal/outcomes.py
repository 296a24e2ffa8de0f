"""What became of each request of a run, as its tokenizer was told, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from ..mailbox.messages.admission import Admit, TokenDeltas
from ..mailbox.messages.steps import StepPlan
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event

Key = tuple[str, int]
"""(request_id, choice)"""


class Outcome(msgspec.Struct):
    """One choice of one request. Times by the scheduler's clock."""

    admit: Admit
    """The first attempt."""
    come_ns: int
    """When the scheduler got it."""
    token_ids: list[int]
    token_ns: list[int]
    """When each token was sent on."""
    reason: str = ""
    """Of its finish; empty while there is none, `refused` if it was not taken."""
    end_ns: int = 0


class Outcomes:
    """Follows a run: of requests that came before it began nothing is kept."""

    def __init__(self) -> None:
        self.of: dict[Key, Outcome] = {}

    def events(self, now_ns: int, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Admit) and (event.request_id, event.choice) not in self.of:
                outcome = Outcome(event, now_ns, list(event.output_token_ids), [now_ns] * len(event.output_token_ids))
                self.of[event.request_id, event.choice] = outcome

    def planned(self, plan: StepPlan) -> None:
        """Nothing to learn."""

    def sent(self, now_ns: int, outgoing: Outgoing) -> None:
        for deltas in outgoing.deltas.values():
            self._take(now_ns, deltas)
        for refusals in outgoing.refused.values():
            for refused in refusals:
                outcome = self.of.get((refused.request_id, refused.choice))
                if outcome is not None:
                    outcome.reason, outcome.end_ns = "refused", now_ns

    def _take(self, now_ns: int, deltas: TokenDeltas) -> None:
        for row, key in enumerate(zip(deltas.request_ids, deltas.choices, strict=True)):
            outcome = self.of.get(key)
            if outcome is None:
                continue
            new = deltas.token_ids[row][max(0, len(outcome.token_ids) - deltas.positions[row]) :]
            outcome.token_ids += new
            outcome.token_ns += [now_ns] * len(new)
            finish = deltas.finishes.get(row)
            if finish is not None:
                outcome.reason, outcome.end_ns = finish.reason, now_ns


class Latencies(msgspec.Struct, frozen=True):
    """p50, p90 and p99, milliseconds; NaN where there is nothing to measure."""

    ttft_ms: tuple[float, float, float]
    """From arrival at the frontend to the first token, of all that had one."""
    itl_ms: tuple[float, float, float]
    """Between two tokens of a choice; tokens that were sent together are 0 apart."""
    e2e_ms: tuple[float, float, float]
    """From arrival to the end, of those that came to their own end."""
    num_finished: int
    """That ended by themselves: stop, length or repetition."""
    num_refused: int


def latencies_of(outcomes: Iterable[Outcome]) -> Latencies:
    """Percentiles over all choices."""
    ttft: list[int] = []
    itl: list[int] = []
    e2e: list[int] = []
    num_refused = 0
    for outcome in outcomes:
        if outcome.token_ns:
            ttft.append(outcome.token_ns[0] - outcome.admit.arrival_ns)
            itl += [later - earlier for earlier, later in pairwise(outcome.token_ns)]
        if outcome.reason in ("stop", "length", "repetition"):
            e2e.append(outcome.end_ns - outcome.admit.arrival_ns)
        num_refused += outcome.reason == "refused"
    return Latencies(_percentiles(ttft), _percentiles(itl), _percentiles(e2e), len(e2e), num_refused)


def _percentiles(times_ns: Sequence[int]) -> tuple[float, float, float]:
    if not times_ns:
        return (float("nan"),) * 3
    p50, p90, p99 = np.percentile(np.asarray(times_ns, np.float64) / 1e6, (50, 90, 99)).tolist()
    return p50, p90, p99
