"""How long a step takes, fitted from the results of a journal.

    run_ns = a + b * tokens + c * rows + d * context

with `tokens` computed in the step, `rows` of its batch, `context` the positions whose keys and values its rows read;
a, b, c, d >= 0, least squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class StepModel(msgspec.Struct, frozen=True):
    """Nanoseconds: of a step, and of what lies between steps."""

    coefficients: tuple[float, float, float, float]
    """a, b, c, d"""
    shortest_ns: float
    """No step was shorter."""
    pickup_ns: float
    """From a plan to its start by a worker that waits for it; median."""
    gap_ns: float
    """From the end of a step to the start of the next if its plan was there; median."""
    report_ns: float
    """From the end of a step to the scheduler's next call; median."""
    num_steps: int
    """Fitted from."""
    error: float
    """Median over these of |fitted - measured| / measured."""

    def run_ns(self, plan: StepPlan) -> int:
        """How long this step takes."""
        return round(max(self.shortest_ns, float(np.dot(self.coefficients, _features(plan)))))


class StepTimes:
    """Follows a replay and notes what each step did and took."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, int], StepPlan] = {}
        self._features: list[tuple[float, float, float, float]] = []
        self._run_ns: list[int] = []
        self._pickup_ns: list[int] = []
        self._gap_ns: list[int] = []
        self._report_ns: list[int] = []
        self._last_end_ns = 0

    def events(self, now_ns: int, events: Sequence[Event]) -> None:
        for event in events:
            if not isinstance(event, StepResult):
                continue
            plan = self._plans.pop((event.epoch, event.step), None)
            if plan is None or event.outcome is not StepOutcome.DONE:
                continue
            self._features.append(_features(plan))
            self._run_ns.append(event.end_ns - event.start_ns)
            self._report_ns.append(now_ns - event.end_ns)
            if plan.now_ns > self._last_end_ns:
                self._pickup_ns.append(event.start_ns - plan.now_ns)
            else:
                self._gap_ns.append(event.start_ns - self._last_end_ns)
            self._last_end_ns = event.end_ns

    def planned(self, plan: StepPlan) -> None:
        self._plans[plan.epoch, plan.step] = plan

    def sent(self, now_ns: int, outgoing: Outgoing) -> None:
        """Nothing to learn."""

    def fit(self) -> StepModel | None:
        """None if no step was run. A second fit leaves out what the first is far from, such as a warm-up."""
        if not self._run_ns:
            return None
        features, run_ns = np.array(self._features), np.array(self._run_ns, np.float64)
        coefficients = _fit(features, run_ns)
        residuals = np.abs(features @ coefficients - run_ns)
        is_near = residuals <= 5 * np.median(residuals) + 1
        coefficients = _fit(features[is_near], run_ns[is_near])
        errors = np.abs(features @ coefficients - run_ns) / np.maximum(run_ns, 1)
        a, b, c, d = coefficients.tolist()
        return StepModel(
            coefficients=(a, b, c, d),
            shortest_ns=float(run_ns.min()),
            pickup_ns=_median(self._pickup_ns),
            gap_ns=_median(self._gap_ns),
            report_ns=_median(self._report_ns),
            num_steps=len(run_ns),
            error=float(np.median(errors)),
        )


def _features(plan: StepPlan) -> tuple[float, float, float, float]:
    starts, num_tokens = np.frombuffer(plan.starts, "<i4"), np.frombuffer(plan.num_tokens, "<i4")
    num_computed = float(num_tokens.sum())
    return 1.0, num_computed, float(len(starts)), float(starts.sum(dtype=np.int64)) + num_computed


def _fit(features: Floats, run_ns: Floats) -> Floats:
    """Least squares with coefficients of at least 0: what would be negative is left out, the worst first."""
    used = list(range(features.shape[1]))
    coefficients = np.zeros(features.shape[1])
    scale = np.maximum(np.abs(features).max(axis=0), 1e-9)
    while used:
        found = np.linalg.lstsq(features[:, used] / scale[used], run_ns, rcond=None)[0]
        if (found >= 0).all():
            coefficients[used] = found / scale[used]
            break
        del used[int(np.argmin(found))]
    return coefficients


def _median(times_ns: Sequence[int]) -> float:
    return float(np.median(times_ns)) if times_ns else 0.0
