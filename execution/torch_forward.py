"""A model's forward pass layer by layer in torch, alone or as one of several ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.collective import Collective
from ..models.protocol import CausalLM
from .attention import PagedAttention
from .input_batch import InputBatch
from .kv_tensors import KVTensors
from .prepare_inputs import StepInputs
from .rank_samplers import FollowingSampler, LeadingSampler, TellingSampler, whole_group_fails
from .sampler import Sampler
from .stage_links import StageLinks, TokenSender
from .torch_sampler import TorchSampler


class TorchForward:
    """Of a model on its device."""

    def __init__(
        self,
        model: CausalLM,
        *,
        num_blocks: int,
        block_size: int,
        kv_dtype: torch.dtype,
        collective: Collective | None = None,
        links: StageLinks | None = None,
        tokens: TokenSender | None = None,
    ) -> None:
        """collective: of the ranks that the model was loaded for; links: of the stage that it was loaded for; tokens:
        where there are several stages, of the rank that samples."""
        self.model = model
        self._collective, self._links, self._sent_tokens = collective, links, tokens
        self.kv = KVTensors(model.local_shape, num_blocks, block_size, kv_dtype, model.device)
        self.shape, self.device = model.shape, model.device

    @property
    def num_weight_bytes(self) -> int:
        return self.model.num_weight_bytes

    def make_sampler(self, batch: InputBatch) -> Sampler:
        collective, vocab_size = self._collective, self.shape.vocab_size
        if collective is not None and collective.rank:
            return FollowingSampler(self.compute_logits, vocab_size, collective, self.device)
        sampler: Sampler = TorchSampler(self.compute_logits, batch, vocab_size, self.device)
        if collective is not None:
            sampler = LeadingSampler(sampler, collective, self.device)
        return sampler if self._sent_tokens is None else TellingSampler(sampler, self._sent_tokens)

    def hidden_states(self, inputs: StepInputs, batch: InputBatch) -> Tensor:
        if self._collective is None and self._links is None:
            return self._hidden_states(inputs, batch)
        with whole_group_fails():
            return self._hidden_states(inputs, batch)

    @torch.inference_mode()
    def _hidden_states(self, inputs: StepInputs, batch: InputBatch) -> Tensor:
        model = self.model
        attention = PagedAttention(self.kv, inputs, batch, model.local_shape, model.dtype)
        token_ids, positions = (
            torch.from_numpy(array).to(self.device) for array in (inputs.token_ids, inputs.positions)
        )
        if self._links is None:
            return model.forward(token_ids, positions, attention)
        receiver, sender = self._links
        before = None if receiver is None else receiver.receive(inputs.plan_id)
        hidden = model.forward(token_ids, positions, attention, before)
        if sender is not None:
            sender.send(inputs.plan_id, hidden)
        return hidden

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[k, hidden_size] -> float32 [k, vocab_size], valid until the next call."""
        return self.model.compute_logits(hidden)
