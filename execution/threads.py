"""Compute threads of a worker process."""

from __future__ import annotations

import torch


def configure_threads(num: int) -> None:
    """Let torch compute with `num` >= 1 threads; call it before the first tensor operation of the process."""
    torch.set_num_threads(num)
