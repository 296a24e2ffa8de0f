"""Angles of the rotary position embedding (Su et al. 2021, arXiv:2104.09864), as cosines and sines by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.shape import ModelShape


def rotary_tables(shape: ModelShape, max_model_len: int) -> tuple[NDArray[np.float32], ...]:
    """`shape.num_rotary_tables` tables as `rotary_table` makes them: of layers that see everything, and of layers with
    a window where those turn at another speed."""
    tables = [rotary_table(shape.head_dim, shape.rope_theta, max_model_len, shape.rope_factors, shape.rope_magnitude)]
    if shape.window_rope_theta is not None:
        tables.append(rotary_table(shape.head_dim, shape.window_rope_theta, max_model_len))
    return tuple(tables)


def rotary_table(
    head_dim: int, theta: float, max_model_len: int, factors: Sequence[float] = (), magnitude: float = 1.0
) -> NDArray[np.float32]:
    """float32 [max_model_len, 2, head_dim]: cosines, and sines with the sign that a half turn wants, by position.

    Angle of position p, pair i: p * theta ** (-2 i / head_dim) / factors[i]; both are multiplied by `magnitude`.
    """
    powers = np.float32(theta) ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    frequencies = np.float32(1.0) / powers
    if factors:
        frequencies /= np.array(factors, np.float32)
    angles = np.outer(np.arange(max_model_len, dtype=np.float32), frequencies)
    cos, sin = np.cos(angles) * np.float32(magnitude), np.sin(angles) * np.float32(magnitude)
    return np.stack((np.concatenate((cos, cos), -1), np.concatenate((-sin, sin), -1)), axis=1)
