"""Sampling of a device's steps: as work that the device does by itself where it can, else with the host's part.

`kind` is the difference. Of the same kind and number of places the work is the same, so that a graph can hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...mailbox.messages.steps import PromptLogprobs, StepPlan
from ..input_batch import InputBatch, Int32s
from ..prepare_inputs import StepInputs
from ..prompt_pieces import PromptPieces
from ..row_logits import has_row_logits
from ..sampler import Sampled
from ..token_masks import TokenMasks
from ..torch_sampler import TorchSampler
from .staging import StagingRing

ComputeLogits = Callable[[Tensor], Tensor]
"""[k, hidden_size] -> [k, vocab_size] of the model's dtype"""
ReadLogprobs = Callable[[NDArray[np.int32]], dict[str, bytes]]
"""The sampler's outputs on the host -> fields of a `StepResult`"""


class StepSampler(Protocol):
    """Follows the rows of one persistent batch."""

    @property
    def outputs(self) -> Tensor:
        """int32, flat: the tokens of all places first; behind them what else there is of them."""
        ...

    def apply(self, plan: StepPlan) -> None:
        """The batch has applied the plan; nothing is waited for."""
        ...

    def clear(self) -> None:
        """Forget every row."""
        ...

    def kind(self, rows: Int32s, positions: Int32s) -> Hashable | None:
        """What these rows want of `launch` for the tokens at `positions`; None: the host has a part in it, so `sample`
        has to do it. Another kind than None holds for the same requests' later tokens, too."""
        ...

    def can_draft(self, rows: Int32s) -> NDArray[np.bool_]:
        """Which of these rows may sample at several places of a step."""
        ...

    def place_masks(self, masks: TokenMasks, rows: Int32s, positions: Int32s, ring: StagingRing) -> None:
        """Of the next `launch`, if some of its rows are constrained: what others than None are the `kind` of. rows,
        positions: [k], of the tokens to be sampled, which have all tokens before them on the host; ring: of masks."""
        ...

    def launch(self, logits: Tensor, rows: Tensor, positions: Tensor, kind: Hashable) -> None:
        """Fill `outputs`. logits: [n, vocab_size]; rows: int32 [n], of the batch, `max_num_seqs` for padding;
        positions: int64 [n], of the tokens whose logits these are."""
        ...

    def logprob_reader(self, rows: Int32s) -> ReadLogprobs | None:
        """What makes fields of a `StepResult` of the host's copy of `outputs`; None if these rows want only tokens. It
        is made when the step is launched: other requests may stand in the rows when it has ended."""
        ...

    def warm_up(self, logits: Tensor) -> None:
        """So that nothing has to be made when it is first wanted; logits: [max_places, vocab_size], anything."""
        ...

    def sample(self, hidden: Tensor, inputs: StepInputs, masks: TokenMasks | None = None) -> Sampled:
        """With the host, which knows all tokens of the rows, and waits; hidden: [t, hidden_size] of the step."""
        ...

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs: ...


class TorchStepSampler:
    """In torch: the device takes the likeliest token of each row by itself, the rest is `TorchSampler`'s."""

    def __init__(
        self, compute_logits: ComputeLogits, batch: InputBatch, vocab_size: int, max_places: int, device: torch.device
    ) -> None:
        self._sampler = TorchSampler(lambda hidden: compute_logits(hidden).float(), batch, vocab_size, device)
        self._is_plain = np.zeros(batch.max_num_seqs, np.bool_)
        self.outputs = torch.zeros(max_places, dtype=torch.int32, device=device)

    def apply(self, plan: StepPlan) -> None:
        self._sampler.apply(plan)
        for new in plan.new_rows:
            sampling = new.sampling
            is_greedy = sampling.temperature == 0 and sampling.logprobs is None
            self._is_plain[new.row] = is_greedy and not has_row_logits(sampling) and not new.is_constrained

    def clear(self) -> None:
        self._sampler.clear()

    def kind(self, rows: Int32s, positions: Int32s) -> Hashable | None:
        return "greedy" if self._is_plain[rows].all() else None

    def can_draft(self, rows: Int32s) -> NDArray[np.bool_]:
        return np.ones(rows.size, np.bool_)

    def place_masks(self, masks: TokenMasks, rows: Int32s, positions: Int32s, ring: StagingRing) -> None:
        raise AssertionError("constrained rows have no kind here")

    def launch(self, logits: Tensor, rows: Tensor, positions: Tensor, kind: Hashable) -> None:
        self.outputs[: len(logits)].copy_(logits.argmax(dim=1))

    def logprob_reader(self, rows: Int32s) -> ReadLogprobs | None:
        return None

    def warm_up(self, logits: Tensor) -> None:
        return

    def sample(self, hidden: Tensor, inputs: StepInputs, masks: TokenMasks | None = None) -> Sampled:
        return self._sampler.sample(hidden, inputs, masks)

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        return self._sampler.prompt_logprobs(pieces, hidden)
