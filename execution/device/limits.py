"""What bounds the steps of a device's runner."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph_buckets import capture_sizes


@dataclass(frozen=True)
class RunnerLimits:
    """Of one rank."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    pipeline_depth: int

    @property
    def buckets(self) -> list[int]:
        """Numbers of rows that decode steps are filled up to."""
        return useful_buckets(self.max_num_seqs)

    @property
    def max_step_tokens(self) -> int:
        """Of the largest step, padding included."""
        return max(self.max_num_batched_tokens, self.buckets[-1])


def useful_buckets(max_num_seqs: int) -> list[int]:
    """Sizes of recorded decode steps, ascending, up to the first that holds all rows."""
    sizes = capture_sizes(max_num_seqs)
    if sizes[-1] < max_num_seqs:
        sizes.append(max_num_seqs)
    return [size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs]
