"""Qwen3 (dense): a Llama whose queries and keys are normalised head by head before they are turned.

Source: Qwen Team 2025 (arXiv:2505.09388), section 2; numerics as in Hugging Face transformers.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .decoder import Decoder
from .norms import rms_norm
from .protocol import Attention
from .rotary import rotate


def forward(
    model: Decoder, token_ids: Tensor, positions: Tensor, attention: Attention, hidden: Tensor | None = None
) -> Tensor:
    """int64 [num_tokens] each -> [num_tokens, hidden_size] of compute_dtype, as `Decoder.forward`."""
    shape, dtype, width, weights = model.local_shape, model.dtype, model.compute_dtype, model.weights
    num_tokens, num_heads = len(token_ids), shape.num_heads
    num_rotated = num_heads + shape.num_kv_heads
    eps = model.eps
    hidden = model.embed(token_ids).to(width) if hidden is None else hidden
    cos, sin = model.rotary_tables[0].index_select(0, positions).unbind(1)  # once a step: [num_tokens, 1, head_dim]
    for index, layer in enumerate(weights.layers):
        model.tap(index, hidden)
        qkv = layer.qkv(rms_norm(hidden, layer.input_norm, eps)).view(num_tokens, -1, shape.head_dim)
        rotated = rotate(rms_norm(qkv[:, :num_rotated], layer.head_norm, eps), cos, sin).to(dtype)
        attended = attention(index, rotated[:, :num_heads], rotated[:, num_heads:], qkv[:, num_rotated:].to(dtype))
        hidden += model.sum_over_ranks(layer.output(attended.to(width)))
        gate, up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)).chunk(2, dim=-1)
        hidden += model.sum_over_ranks(layer.down(F.silu(gate).mul_(up)))
    return model.end(hidden)
