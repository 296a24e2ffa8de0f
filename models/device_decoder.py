"""A decoder whose layers are the operations of a device: every family that the registry has, one forward pass.

The residual is of the model's dtype, as in transformers: then its addition is part of the matrix product before it, and
few rows read half the bytes; float32 would round less than what the products between have lost already.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from ..kernels.device_operations import Activation, Matrix, Norm, Operations, PagedCache, RowTables
from .decoder_weights import Layer, Weights
from .rotary_tables import rotary_tables
from .tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True)
class StepTensors:
    """t tokens of n rows, on the device."""

    token_ids: Tensor
    """int64 [t]"""
    positions: Tensor
    """int64 [t]"""
    slot_mapping: Tensor
    """int64 [t]: -1 for padding"""
    rows: RowTables


class DecoderBuffers:
    """What a forward pass of up to `max_tokens` tokens writes between its operations; made once."""

    def __init__(self, shape: ModelShape, max_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self._heads = shape.num_heads, shape.head_dim
        widths = {
            "hidden": shape.hidden_size,
            "qkv": (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim,
            "query": shape.num_heads * shape.head_dim,
            "attended": shape.num_heads * shape.head_dim,
            "gated": shape.intermediate_size,
            "branch": shape.hidden_size,
        }
        self._flat = {
            name: torch.empty(max_tokens, width, dtype=dtype, device=device) for name, width in widths.items()
        }
        self._kept: dict[int, TokenBuffers] = {}

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._flat.values())

    def keep(self, num_tokens: int) -> TokenBuffers:
        """As `take`, made once for each number: for the few that come again and again."""
        if (kept := self._kept.get(num_tokens)) is None:
            kept = self._kept[num_tokens] = self.take(num_tokens)
        return kept

    def take(self, num_tokens: int) -> TokenBuffers:
        """Of the first tokens."""
        flat = {name: tensor[:num_tokens] for name, tensor in self._flat.items()}
        heads = (num_tokens, *self._heads)
        return TokenBuffers(**flat, queries=flat["query"].view(heads), attended_heads=flat["attended"].view(heads))


@dataclass(frozen=True, slots=True)
class TokenBuffers:
    """Views of `DecoderBuffers`, [t, width] each."""

    hidden: Tensor
    qkv: Tensor
    query: Tensor
    attended: Tensor
    gated: Tensor
    branch: Tensor
    """What a norm takes before it is added (Gemma 3)."""
    queries: Tensor
    """`query` as [t, num_heads, head_dim]"""
    attended_heads: Tensor
    """`attended` as [t, num_heads, head_dim]"""


class DeviceDecoder:
    """Weights on one device, called under `torch.inference_mode()`.

    Of several ranks each adds its part of a product to nothing, but rank 0 to the residual, and the sum over the ranks
    is the new residual: one exchange and no addition behind it.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: Weights[Tensor, Matrix, Tensor],
        operations: Operations,
        max_model_len: int,
        *,
        activation: Activation = "silu",
        is_embedding_scaled: bool = False,
        parallel: TensorParallel | None = None,
    ) -> None:
        """shape: of the weights; parallel: the other ranks, if the weights are a rank's share."""
        self.local_shape, self.weights, self.operations = shape, weights, operations
        self.shape = shape if parallel is None else parallel.sharding.shape
        """Of the whole model."""
        self.parallel = parallel
        self._has_residual = parallel is None or parallel.collective.rank == 0
        self.dtype, self.device = weights.embedding.dtype, weights.embedding.device
        self._activation: Activation = activation
        self._scale: float | None = None
        if is_embedding_scaled:  # rounded to the dtype, as transformers does
            self._scale = float(torch.tensor(shape.hidden_size**0.5, dtype=self.dtype))
        self._tables = tuple(
            torch.from_numpy(table).unsqueeze(2).to(self.device, self.dtype)
            for table in rotary_tables(shape, max_model_len)
        )
        windows = shape.windows or (None,) * shape.num_layers
        self._layers = tuple(
            _Block(
                layer,
                window,
                self._tables[0] if window is None else self._tables[-1],
                _norm(layer.input_norm, shape),
                _norm(layer.mlp_norm, shape),
                _optional_norm(layer.head_norm, shape),
                _optional_norm(layer.after_attention_norm, shape),
                _optional_norm(layer.after_mlp_norm, shape),
            )
            for layer, window in zip(weights.layers, windows, strict=True)
        )
        self._final_norm = _norm(weights.final_norm, shape)

    @property
    def num_weight_bytes(self) -> int:
        """Of weights and tables, a tied head once."""
        weights = self.weights
        tensors = {id(tensor): tensor for tensor in (weights.embedding, *weights.vectors(), *self._tables)}
        for matrix in (weights.head, *weights.matrices()):
            tensors |= {id(tensor): tensor for tensor in matrix if tensor is not None}
        return sum(prod(tensor.shape) * tensor.itemsize for tensor in tensors.values())

    def forward(self, step: StepTensors, caches: tuple[PagedCache, ...], buffers: TokenBuffers) -> Tensor:
        """Hidden states before the final norm, [t, hidden_size]: `buffers.hidden`; keys and values of the step are in
        the caches, one a layer."""
        hidden = buffers.hidden
        if self.parallel is None:
            torch.index_select(self.weights.embedding, 0, step.token_ids, out=hidden)
        else:
            hidden.copy_(self.parallel.embed(step.token_ids, self.weights.embedding))
        if self._scale is not None:
            hidden.mul_(self._scale)
        for block, cache in zip(self._layers, caches, strict=True):
            self._attend(block, cache, step, buffers)
            self._mlp(block, buffers)
        return hidden

    def logits(self, hidden: Tensor, out: Tensor) -> None:
        """hidden: [k, hidden_size], rows of `forward`'s result; out: [k, vocab_size] of the model's dtype, which ranks
        that do not sample leave as it is."""
        if self.parallel is None:
            self.operations.linear(hidden, self.weights.head, out, norm=self._final_norm)
            return
        own = hidden.new_empty(len(hidden), self.local_shape.vocab_size)
        self.operations.linear(hidden, self.weights.head, own, norm=self._final_norm)
        self.parallel.put_logits(own, out)

    def _attend(self, block: _Block, cache: PagedCache, step: StepTensors, buffers: TokenBuffers) -> None:
        operations, layer = self.operations, block.layer
        operations.linear(buffers.hidden, layer.qkv, buffers.qkv, norm=block.input_norm)
        operations.rotary_kv_write(
            buffers.qkv, step.positions, block.table, step.slot_mapping, cache, buffers.queries, block.head_norm
        )
        scale = self.shape.head_dim**-0.5
        operations.attend(buffers.queries, cache, step.rows, buffers.attended_heads, scale=scale, window=block.window)
        self._add(buffers.attended, layer.output, block.after_attention_norm, buffers)

    def _mlp(self, block: _Block, buffers: TokenBuffers) -> None:
        """The MLP."""
        gate_up = block.layer.gate_up
        self.operations.gated_linear(buffers.hidden, gate_up, buffers.gated, self._activation, block.mlp_norm)
        self._add(buffers.gated, block.layer.down, block.after_mlp_norm, buffers)

    def _add(self, x: Tensor, matrix: Matrix, norm: Norm | None, buffers: TokenBuffers) -> None:
        """To the hidden states."""
        if norm is not None:
            self.operations.linear(x, matrix, buffers.branch)
            self._sum_over_ranks(buffers.branch)
            self.operations.add_norm(buffers.branch, norm, buffers.hidden)
            return
        if self._has_residual:
            self.operations.add_linear(x, matrix, buffers.hidden)
        else:
            self.operations.linear(x, matrix, buffers.hidden)
        self._sum_over_ranks(buffers.hidden)

    def _sum_over_ranks(self, partial: Tensor) -> None:
        """In its place."""
        if self.parallel is not None and (total := self.parallel.sum_of(partial)) is not partial:
            partial.copy_(total)


@dataclass(frozen=True, slots=True)
class _Block:
    """A layer, and what its operations are told."""

    layer: Layer[Matrix, Tensor]
    window: int | None
    table: Tensor
    input_norm: Norm
    mlp_norm: Norm
    head_norm: Norm | None
    after_attention_norm: Norm | None
    after_mlp_norm: Norm | None


def _norm(weight: Tensor, shape: ModelShape) -> Norm:
    return Norm(weight, shape.rms_norm_eps)


def _optional_norm(weight: Tensor, shape: ModelShape) -> Norm | None:
    """None where the family has none."""
    return _norm(weight, shape) if len(weight) else None
