"""What bounds the steps of a device's runner."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph_buckets import capture_sizes

MAX_DRAFT_PLACES = 1024
"""Their logits alone take 256 MB of a vocabulary of 128,256 in bfloat16, and what changes them twice that."""


@dataclass(frozen=True)
class RunnerLimits:
    """Of one rank."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    pipeline_depth: int
    max_drafts: int = 0
    """Of a row in a step."""

    @property
    def buckets(self) -> list[int]:
        """Numbers of rows that decode steps are filled up to."""
        return useful_buckets(self.max_num_seqs)

    @property
    def max_places(self) -> int:
        """That a step samples, padding included."""
        most = self.buckets[-1]
        return most if not self.max_drafts else max(2 * most, min(most * (1 + self.max_drafts), MAX_DRAFT_PLACES))

    @property
    def max_step_tokens(self) -> int:
        """Of the largest step, padding included."""
        return max(self.max_num_batched_tokens, self.max_places)


def useful_buckets(max_num_seqs: int) -> list[int]:
    """Sizes of recorded decode steps, ascending, up to the first that holds all rows."""
    sizes = capture_sizes(max_num_seqs)
    if sizes[-1] < max_num_seqs:
        sizes.append(max_num_seqs)
    return [size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs]
