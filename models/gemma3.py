"""Gemma 3 (text): scaled embedding, norms before and after each half of a layer, normalised queries and keys, GeGLU;
most layers see a window and turn at a speed of their own.

Source: Gemma Team 2025 (arXiv:2503.19786), section 2; numerics as in Hugging Face transformers: the embedding's scale
is rounded to the model's dtype, norms multiply by 1 + weight in float32.
"""

from __future__ import annotations

import torch
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
    if hidden is None:
        scale = float(torch.tensor(shape.hidden_size**0.5, dtype=dtype))  # a number of the host: no step copies it
        hidden = (model.embed(token_ids) * scale).to(width)
    turns = [table.index_select(0, positions).unbind(1) for table in model.rotary_tables]
    windows = shape.windows or (None,) * shape.num_layers
    for index, (layer, window) in enumerate(zip(weights.layers, windows, strict=True)):
        model.tap(index, hidden)
        cos, sin = turns[0] if window is None else turns[-1]  # [num_tokens, 1, head_dim]
        qkv = layer.qkv(rms_norm(hidden, layer.input_norm, eps)).view(num_tokens, -1, shape.head_dim)
        rotated = rotate(rms_norm(qkv[:, :num_rotated], layer.head_norm, eps), cos, sin).to(dtype)
        attended = attention(index, rotated[:, :num_heads], rotated[:, num_heads:], qkv[:, num_rotated:].to(dtype))
        output = model.sum_over_ranks(layer.output(attended.to(width)))
        hidden += rms_norm(output, layer.after_attention_norm, eps)
        gate, up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)).chunk(2, dim=-1)
        activated = model.sum_over_ranks(layer.down(F.gelu(gate, approximate="tanh").mul_(up)))
        hidden += rms_norm(activated, layer.after_mlp_norm, eps)
    return model.end(hidden)
