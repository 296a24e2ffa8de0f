"""What the caller of a batch is told while it runs."""

from __future__ import annotations

import msgspec


class BatchProgress(msgspec.Struct, frozen=True):
    """How far a batch has come."""

    num_done: int
    """Failed ones included."""
    num_failed: int
    num_prompts: int | None
    """None: the prompts come from an iterator."""
    num_tokens: int
    """Generated so far, also by requests that run."""
    seconds: float
    """Since the batch began."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0
