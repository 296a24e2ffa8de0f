"""Rotary position embedding over half-split heads (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape


def rotary_tables(shape: ModelShape, max_model_len: int) -> tuple[Tensor, ...]:
    """`shape.num_rotary_tables` tables as `rotary_table` makes them: of layers that see everything, and of layers with
    a window where those turn at another speed."""
    tables = [rotary_table(shape.head_dim, shape.rope_theta, max_model_len, shape.rope_factors, shape.rope_magnitude)]
    if shape.window_rope_theta is not None:
        tables.append(rotary_table(shape.head_dim, shape.window_rope_theta, max_model_len))
    return tuple(tables)


def rotary_table(
    head_dim: int, theta: float, max_model_len: int, factors: Sequence[float] = (), magnitude: float = 1.0
) -> Tensor:
    """float32 [max_model_len, 2, 1, head_dim]: cosines, and sines with the sign that `rotate` wants, by position.

    Angle of position p, pair i: p * theta ** (-2 i / head_dim) / factors[i]; both are multiplied by `magnitude`.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if factors:
        frequencies /= torch.tensor(factors, dtype=torch.float32)
    angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), frequencies)
    cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1).unsqueeze(2)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of each head by its angle.

    heads: [num_tokens, num_heads, head_dim]; cos, sin: [num_tokens, 1, head_dim], rows of `rotary_table`.
    """
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
