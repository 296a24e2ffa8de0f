"""A step of the sampling kernels from the twin's own arguments."""

from __future__ import annotations

import numpy as np
import torch

from callboard.kernels.gpu.argmax import argmax_rows
from callboard.kernels.gpu.sampling import (
    SamplingKind,
    SamplingOutputs,
    SamplingTensors,
    change_rows,
    sample_rows,
)
from callboard.kernels.gpu.sampling_rows import Column, SamplingWorkspace, encode_parameters, split_seeds
from callboard.kernels.gpu.thresholds import find_thresholds
from callboard.kernels.sampling import SamplingBatch
from callboard.tests.kernels.gpu import DEVICE


def make_batch(n, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=None, indexes=0, choices=0):
    def full(value, dtype):
        return torch.as_tensor(value, dtype=dtype).expand(n).clone()

    return SamplingBatch(
        temperature=full(temperature, torch.float32),
        top_k=full(top_k, torch.int64),
        top_p=full(top_p, torch.float32),
        min_p=full(min_p, torch.float32),
        seeds=torch.arange(n) if seeds is None else full(seeds, torch.int64),
        indexes=full(indexes, torch.int64),
        choices=full(choices, torch.int64),
    )


def columns_of(batch):
    """As the table of parameters has them; the index is the position of the token before, as `INDEX_ORIGIN` is 1."""
    with np.errstate(divide="ignore"):
        least = np.log(batch.min_p.numpy())
    return {
        Column.TEMPERATURE: batch.temperature.numpy(),
        Column.TOP_K: batch.top_k.numpy(),
        Column.TOP_P: batch.top_p.numpy(),
        Column.MIN_LOGIT: least,
        Column.CHOICE: batch.choices.numpy(),
        Column.INDEX_ORIGIN: np.ones(batch.choices.shape[0], np.int32),
        **split_seeds(batch.seeds.numpy().view(np.uint64)),
    }


class Step:
    """n places over the rows of a table in another order, with rows between them that are not in the step."""

    def __init__(self, logits, batch, *, columns=None, max_bias=8, kind=None, padding=0):
        n, vocab_size = logits.shape
        num_rows = 2 * n + 1
        self.rows = torch.from_numpy(np.random.default_rng(n).permutation(num_rows)[:n].astype(np.int32))
        all_columns = columns_of(batch) | (columns or {})
        table = encode_parameters(num_rows, {})
        table[self.rows] = encode_parameters(n, all_columns)
        self.tensors = SamplingTensors.make(num_rows, n + padding, vocab_size, max_bias, DEVICE)
        self.tensors.table.copy_(torch.from_numpy(table))
        self.kind = kind or SamplingKind(has_draws=True, has_filters=True)
        self.workspace = SamplingWorkspace(n + padding, vocab_size, DEVICE)
        self.outputs = SamplingOutputs(n + padding, DEVICE)
        empty = torch.full((padding, vocab_size), torch.nan, dtype=logits.dtype)
        self.logits = torch.cat((logits, empty)).to(DEVICE)
        self.places = torch.cat((self.rows, torch.full((padding,), num_rows, dtype=torch.int32))).to(DEVICE)
        self.positions = torch.cat((batch.indexes, torch.zeros(padding, dtype=torch.int64))).to(DEVICE)
        self.num_places = n

    def run(self):
        """int64 [n] tokens, on the CPU."""
        if self.kind.has_changes:
            change_rows(self.logits, self.places, self.tensors)
        sample_rows(
            self.logits, self.places, self.positions, self.kind, self.tensors, self.workspace, self.outputs
        )  # fmt: skip
        return self.outputs.tokens[: self.num_places].long().cpu()


def thresholds(logits, batch):
    """float32 [n] from the kernel."""
    step = Step(logits, batch)
    arguments = (step.logits, None, step.places, step.tensors.table)
    argmax_rows(*arguments, step.outputs.tokens, step.workspace)
    find_thresholds(*arguments, step.workspace)
    return step.workspace.thresholds.cpu()
