"""A step's time fitted to steps that were measured: a sum of the load's parts, each with a weight that is not negative.

    time = c0 + c1 decode rows + c2 prefill rows + c3 prefill tokens + c4 context tokens + c5 prefill context tokens
        + c6 prefill pairs

Least squares of the error relative to what the fit itself says, so that the many short decode steps count as much as
the few long ones: each solution gives the weights of the next, and at the end the mean of measured over fitted is 1.
(Relative to what was measured, steps that a busy machine made long would count less than those that it did not: the fit
would be too fast by twice the square of the times' relative spread.) With so few parts every subset of them is solved
without the bound, and the best of those whose weights are all positive is taken: that is the exact solution of the
bounded problem, whose positive weights solve the free one over themselves.

What the samples cannot tell apart is left out. Pairs grow with the square of a prompt's length, so over short prompts
they pass for tokens, and are wrong for longer ones then: they need a prefill that looks at MIN_PAIR_CONTEXT positions
or more. Where every prefill is a whole prompt, the positions that it looks at are its tokens. Steps that are a stall of
the machine rather than a step, such as the first ones of an engine, count for nothing: those that the fit is off by
more than three times, but not more than one in ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec
import numpy as np
import numpy.typing as npt

from .step_load import StepLoad

PARTS = ("step", "decode row", "prefill row", "prefill token", "context token", "prefill context token", "prefill pair")
MIN_SAMPLES = 20
MIN_PAIR_CONTEXT = 1024
_FAR = 3.0
"""Measured over fitted, or the other way round."""
_MAX_LEFT_OUT = 0.1
_NUM_ROUNDS = 8
"""Solutions, each with the weights that the one before gives; the third is near the last."""


class StepSample(msgspec.Struct, frozen=True, gc=False):
    """One measured step."""

    duration_ns: int
    load: StepLoad


class FittedSteps(msgspec.Struct, frozen=True):
    """`StepTimes` with the weights of a fit, in nanoseconds each."""

    weights_ns: tuple[float, ...]
    """Parallel to PARTS."""
    num_samples: int
    residual: float
    """Root of the mean square of the error, relative to what the fit says."""
    median_error: float
    """Median of its size."""

    def step_ns(self, load: StepLoad) -> int:
        """Nanoseconds of a step, at least 1."""
        w = self.weights_ns
        return max(
            1,
            round(
                w[0]
                + w[1] * load.num_decode_rows
                + w[2] * load.num_prefill_rows
                + w[3] * load.num_prefill_tokens
                + w[4] * load.context_tokens
                + w[5] * load.prefill_context_tokens
                + w[6] * load.prefill_pairs
            ),
        )

    def lines(self) -> list[str]:
        """For a person: each part's weight, and how well they fit."""
        shown = [f"  {weight / 1e3:12.4f} us a {name}" for name, weight in zip(PARTS, self.weights_ns, strict=True)]
        error = f"relative error: median {self.median_error:.1%}, root mean square {self.residual:.1%}"
        return [f"step time fitted to {self.num_samples:,} steps; {error}", *shown]


def fit(samples: Sequence[StepSample]) -> FittedSteps:
    """The weights that fit best. Raises ValueError for fewer than MIN_SAMPLES, or a duration that is not above 0."""
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{len(samples)} measured steps are too few to fit, {MIN_SAMPLES} are needed")
    durations = np.array([sample.duration_ns for sample in samples], np.float64)
    if durations.min() <= 0:
        raise ValueError("a measured step took no time")
    parts = np.array([_parts(sample.load) for sample in samples], np.float64)
    for name, is_told in _told_apart(samples):
        if not is_told:
            parts[:, PARTS.index(name)] = 0.0
    fitted, kept = durations, np.full(len(samples), True)
    for _ in range(_NUM_ROUNDS):
        weights = _least_squares(parts[kept] / fitted[kept, None], durations[kept] / fitted[kept])
        fitted = parts @ weights
        sizes = np.abs(np.log(durations / fitted))
        kept = sizes <= max(np.log(_FAR), float(np.quantile(sizes, 1 - _MAX_LEFT_OUT)))
    errors = durations / fitted - 1
    return FittedSteps(
        weights_ns=tuple(weights.tolist()),
        num_samples=len(samples),
        residual=float(np.sqrt(np.mean(errors**2))),
        median_error=float(np.median(np.abs(errors))),
    )


def _told_apart(samples: Sequence[StepSample]) -> list[tuple[str, bool]]:
    """Parts that grow with another one, and whether these samples tell them from it."""
    loads = [sample.load for sample in samples]
    return [
        ("prefill pair", max(load.prefill_context_tokens for load in loads) >= MIN_PAIR_CONTEXT),
        ("prefill context token", any(load.prefill_context_tokens != load.num_prefill_tokens for load in loads)),
    ]


def _parts(load: StepLoad) -> tuple[int, ...]:
    return (
        1,
        load.num_decode_rows,
        load.num_prefill_rows,
        load.num_prefill_tokens,
        load.context_tokens,
        load.prefill_context_tokens,
        load.prefill_pairs,
    )


def _least_squares(parts: npt.NDArray[np.float64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """w >= 0 [k] that minimises |parts @ w - values|; parts: [n, k]."""
    scale = np.sqrt((parts**2).sum(axis=0))
    used = np.flatnonzero(scale)
    columns = parts[:, used] / scale[used]
    gram, target = columns.T @ columns, columns.T @ values
    best, best_loss = np.zeros(len(used)), 0.0
    for size in range(1, len(used) + 1):
        for subset in map(list, combinations(range(len(used)), size)):
            found = np.linalg.lstsq(gram[np.ix_(subset, subset)], target[subset], rcond=None)[0]
            loss = float(found @ gram[np.ix_(subset, subset)] @ found - 2 * found @ target[subset])
            if (found >= 0).all() and loss < best_loss:
                best, best_loss = np.zeros(len(used)), loss
                best[subset] = found
    weights = np.zeros(parts.shape[1])
    weights[used] = best / scale[used]
    return weights
