"""Ways to stretch a rotary embedding beyond the length that a model was trained on, as one divisor a frequency.

Pair i of a head turns by `theta ** (-2 i / head_dim) / factor[i]` a token. Numerics as in Hugging Face transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Factors = tuple[float, ...]
"""head_dim / 2 divisors."""


def linear_factors(head_dim: int, factor: float) -> Factors:
    """Every frequency by the same: positions are interpolated (Chen et al. 2023, arXiv:2306.15595)."""
    return (factor,) * (head_dim // 2)


def llama3_factors(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position: int,
) -> Factors:
    """Llama 3.1: slow frequencies by `factor`, fast ones not at all, those between by a smooth blend.

    A frequency is slow if fewer than `low_freq_factor` of its turns fit into the original length, fast if more than
    `high_freq_factor` do. Source: Llama 3.1's reference code (`apply_scaling`).
    """
    factors = []
    for frequency in _frequencies(head_dim, theta):
        num_turns = original_max_position * frequency / (2 * math.pi)
        share = _clamp((num_turns - low_freq_factor) / (high_freq_factor - low_freq_factor))
        factors.append(1 / ((1 - share) / factor + share))
    return tuple(factors)


def yarn_factors(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    beta_fast: float,
    beta_slow: float,
    original_max_position: int,
    rounds_bounds: bool,
) -> Factors:
    """YaRN: a ramp over the pairs, from those that turn `beta_fast` times in the original length (not scaled) to those
    that turn `beta_slow` times (by `factor`).

    Source: Peng et al. 2023 (arXiv:2309.00071), section 3.2.
    """

    def pair_that_turns(num_turns: float) -> float:
        return head_dim * math.log(original_max_position / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if rounds_bounds:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    shares = [1 - _clamp((pair - low) / (high - low)) for pair in range(head_dim // 2)]
    return tuple(1 / ((1 - share) / factor + share) for share in shares)


def yarn_magnitude(factor: float) -> float:
    """What YaRN multiplies cosines and sines by (ibid., section 3.3)."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


def are_sane(factors: Sequence[float]) -> bool:
    """Positive and finite."""
    return all(0.0 < factor < math.inf for factor in factors)


def _frequencies(head_dim: int, theta: float) -> list[float]:
    return [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]


def _clamp(share: float) -> float:
    return min(max(share, 0.0), 1.0)
