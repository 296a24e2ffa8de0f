"""One token for each place of a step, from logits on a GPU: the kernels of this folder in their order.

Which kernels run depends on what the step's rows ask for, never on what the logits are: `SamplingKind` is known on the
host from the rows' parameters, and for each kind (and number of places) the launches are the same, so that a graph can
hold them. A greedy step is one pass over the logits and one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..bitmask_words import num_words
from .argmax import argmax_rows
from .draw import draw_rows
from .logit_changes import change_logits, count_tokens
from .sampling_rows import MAX_TOP, NUM_COLUMNS, Column, SamplingWorkspace
from .thresholds import find_thresholds
from .token_bitmask import apply_token_bitmask
from .token_logprobs import token_logprobs


class SamplingKind(NamedTuple):
    """What some row of a step asks for."""

    has_draws: bool = False
    """A temperature that is not 0."""
    has_filters: bool = False
    """top_k, top_p or min_p, of a row that draws."""
    has_changes: bool = False
    """Bias, masks or penalties."""
    has_penalties: bool = False
    has_logprobs: bool = False
    has_masks: bool = False
    """Bitmasks, in the step's `MaskTensors`, of rows that have changes."""


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """What the device keeps of `num_rows` rows; int32 unless said."""

    table: Tensor
    """[num_rows, NUM_COLUMNS]: `Column` has them by name."""
    counts: Tensor
    """[num_rows, vocab_size]: `logit_changes`."""
    bias_ids: Tensor
    """[num_rows, max_bias]"""
    bias: Tensor
    """float32 [num_rows, max_bias]"""
    changed: Tensor
    """float32 [max places of a step, vocab_size]"""

    @staticmethod
    def make(num_rows: int, max_places: int, vocab_size: int, max_bias: int, device: torch.device) -> SamplingTensors:
        """All rows greedy, without anything else."""
        table = torch.zeros((num_rows, NUM_COLUMNS), dtype=torch.int32, device=device)
        table[:, Column.NUM_TOP] = -1
        return SamplingTensors(
            table=table,
            counts=torch.zeros((num_rows, vocab_size), dtype=torch.int32, device=device),
            bias_ids=torch.zeros((num_rows, max_bias), dtype=torch.int32, device=device),
            bias=torch.zeros((num_rows, max_bias), dtype=torch.float32, device=device),
            changed=torch.empty((max_places, vocab_size), dtype=torch.float32, device=device),
        )

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for x in (self.table, self.counts, self.bias_ids, self.bias, self.changed))


class MaskTensors:
    """Bitmasks of a step of up to `max_places` places."""

    def __init__(self, max_places: int, vocab_size: int, device: torch.device) -> None:
        self.rows = torch.full((max_places,), -1, dtype=torch.int32, device=device)
        """int32 [max_places]: the place of each mask; -1: there is none"""
        self.words = torch.zeros((max_places, num_words(vocab_size)), dtype=torch.int32, device=device)

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes + self.words.nbytes


class SamplingOutputs:
    """Of up to `max_places` places, each written where its row asks for it; in one piece of memory, `everything`, so
    that one copy brings them to the host."""

    def __init__(self, max_places: int, device: torch.device) -> None:
        sizes = [max_places, max_places, max_places * MAX_TOP, max_places * MAX_TOP]
        self.everything = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self.tokens, logprobs, top_ids, top_logprobs = self.everything.split(sizes)
        """int32 [max_places]; first in `everything`"""
        self.logprobs = logprobs.view(torch.float32)
        """float32 [max_places]"""
        self.top_ids = top_ids.view(max_places, MAX_TOP)
        """int32"""
        self.top_logprobs = top_logprobs.view(torch.float32).view(max_places, MAX_TOP)
        """float32"""


def change_rows(logits: Tensor, rows: Tensor, tensors: SamplingTensors) -> None:
    """Bias and penalties, into `tensors.changed`. logits: [n, vocab] float32 or bfloat16; rows: int32 [n]."""
    change_logits(logits, tensors.changed, rows, tensors.table, tensors.counts, tensors.bias_ids, tensors.bias)


def mask_rows(num_places: int, tensors: SamplingTensors, masks: MaskTensors) -> None:
    """Forbid tokens in `tensors.changed`, behind `change_rows`."""
    apply_token_bitmask(tensors.changed[:num_places], masks.rows[:num_places], masks.words[:num_places])


def sample_rows(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    kind: SamplingKind,
    tensors: SamplingTensors,
    workspace: SamplingWorkspace,
    outputs: SamplingOutputs,
) -> None:
    """Fill `outputs` for n places; `change_rows` and `mask_rows` have run if the kind has
    changes and masks.

    logits: [n, vocab] float32 or bfloat16; rows: int32 [n], distinct but for padding, which is outside the table;
    positions: int64 or int32 [n], of the tokens whose logits these are, one before those to be sampled.
    """
    changed, table = tensors.changed if kind.has_changes else None, tensors.table
    argmax_rows(logits, changed, rows, table, outputs.tokens, workspace)
    if kind.has_filters:
        find_thresholds(logits, changed, rows, table, workspace)
    if kind.has_draws:
        draw_rows(
            logits, changed, rows, positions, table, outputs.tokens, workspace, has_filters=kind.has_filters
        )  # fmt: skip
    if kind.has_logprobs:
        token_logprobs(
            logits, changed, rows, table, outputs.tokens, outputs.logprobs, outputs.top_ids, outputs.top_logprobs,
            workspace, has_filters=kind.has_filters,
        )  # fmt: skip
    if kind.has_penalties:
        count_tokens(outputs.tokens, rows, table, tensors.counts)
