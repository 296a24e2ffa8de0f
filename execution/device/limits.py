"""What bounds the steps of a device's runner."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph_buckets import capture_sizes

DRAFT_LENGTHS = (2, 4, 8)
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
    def draft_buckets(self) -> list[int]:
        """Numbers of tokens that steps with drafts are filled up to; the largest has room for one draft of each row."""
        most = self.buckets[-1]
        return draft_buckets(max(2 * most, min(most * (1 + self.max_drafts), MAX_DRAFT_PLACES)))

    @property
    def draft_lengths(self) -> list[int]:
        """Tokens of a row that steps with drafts are made for, ascending."""
        return [length for length in DRAFT_LENGTHS if length < 2 * (1 + self.max_drafts)] if self.max_drafts else []

    @property
    def num_sizes(self) -> int:
        """Of steps that may be recorded."""
        return len(self.buckets) + len(self.draft_lengths) * len(self.draft_buckets)

    @property
    def max_places(self) -> int:
        """That a step samples, padding included."""
        return self.draft_buckets[-1] if self.max_drafts else self.buckets[-1]

    @property
    def max_step_tokens(self) -> int:
        """Of the largest step, padding included."""
        return max(self.max_num_batched_tokens, self.max_places)


def draft_buckets(most: int) -> list[int]:
    """Ascending, up to the first that holds `most`: 2, 4, 8, then in steps of an eighth of the power of two before."""
    sizes = [2, 4, 8]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(8, 1 << max(0, sizes[-1].bit_length() - 4)))
    return sizes


def useful_buckets(max_num_seqs: int) -> list[int]:
    """Sizes of recorded decode steps, ascending, up to the first that holds all rows."""
    sizes = capture_sizes(max_num_seqs)
    if sizes[-1] < max_num_seqs:
        sizes.append(max_num_seqs)
    return [size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs]
