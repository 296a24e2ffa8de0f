"""The Llama architecture: RMSNorm, rotary embedding over half-split heads, grouped-query attention, SwiGLU.

Source: Touvron et al. 2023 (arXiv:2302.13971), with grouped-query attention as in Llama 2; numerics as in Hugging Face
transformers (norms and the rotary table in float32).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checkpoints.shape import ModelShape
from .linear import compute_dtype
from .llama_weights import LlamaWeights, gather_weights, planned_weight_bytes, tensor_shapes
from .protocol import Attention, CausalLM


class Llama(CausalLM):
    """A Llama on one device: `dtype` is that of queries, keys and values, `compute_dtype` that of all between."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, weights: LlamaWeights, max_model_len: int) -> None:
        self._shape, self._dtype, self._device = shape, dtype, weights.embedding.device
        self.compute_dtype = weights.final_norm.dtype
        self._weights = weights
        self._eps = torch.tensor(shape.rms_norm_eps, device=self._device)
        self._rotary = rotary_table(shape.head_dim, shape.rope_theta, max_model_len).to(
            self._device, self.compute_dtype
        )

    @property
    def shape(self) -> ModelShape:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def num_weight_bytes(self) -> int:
        return self._weights.num_bytes + self._rotary.nbytes

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """int64 [num_tokens] each -> [num_tokens, hidden_size] of compute_dtype, after the final norm."""
        shape, dtype, width, weights = self._shape, self._dtype, self.compute_dtype, self._weights
        num_tokens, num_heads, num_kv_heads = len(token_ids), shape.num_heads, shape.num_kv_heads
        num_rotated = num_heads + num_kv_heads
        eps = self._eps
        hidden = F.embedding(token_ids, weights.embedding).to(width)
        cos, sin = self._rotary.index_select(0, positions).unbind(1)  # once a step: [num_tokens, 1, head_dim]
        for index, layer in enumerate(weights.layers):
            qkv = layer.qkv(rms_norm(hidden, layer.input_norm, eps)).view(num_tokens, -1, shape.head_dim)
            rotated = rotate(qkv[:, :num_rotated], cos, sin).to(dtype)
            attended = attention(index, rotated[:, :num_heads], rotated[:, num_heads:], qkv[:, num_rotated:].to(dtype))
            hidden += layer.output(attended.to(width))
            gate, up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)).chunk(2, dim=-1)
            hidden += layer.down(F.silu(gate).mul_(up))
        return rms_norm(hidden, weights.final_norm, eps)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[k, hidden_size] of compute_dtype -> float32 [k, vocab_size]."""
        return self._weights.head(hidden).float()

    @staticmethod
    def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor that a Llama of `shape` is made of."""
        return tensor_shapes(shape)

    @staticmethod
    def planned_bytes(shape: ModelShape, dtype: torch.dtype, device: torch.device, max_model_len: int) -> int:
        """`num_weight_bytes` of the model that `from_pieces` would build."""
        table_elements = max_model_len * 2 * shape.head_dim
        return planned_weight_bytes(shape, dtype, device) + table_elements * compute_dtype(dtype, device).itemsize

    @classmethod
    def from_pieces(
        cls,
        shape: ModelShape,
        pieces: Iterator[tuple[str, int, Tensor]],
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
    ) -> Llama:
        """Build it from (canonical name, first row, rows): each row of each tensor of `tensor_shapes` once."""
        return cls(shape, dtype, gather_weights(shape, pieces, dtype, device), max_model_len)


def rotary_table(head_dim: int, theta: float, max_model_len: int) -> Tensor:
    """float32 [max_model_len, 2, 1, head_dim]: cosines, and sines with the sign that `rotate` wants, by position.

    Angle of position p, pair i: p * theta ** (-2 i / head_dim) (Su et al. 2021, arXiv:2104.09864).
    """
    inverse_frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), inverse_frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1).unsqueeze(2)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of each head by its angle.

    heads: [num_tokens, num_heads, head_dim]; cos, sin: [num_tokens, 1, head_dim], rows of `rotary_table`.
    """
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last axis, in float32 inside.

    x: [num_rows, size], weight: [size] of x's dtype, eps: float32 scalar on the same device.
    On the CPU `F.rms_norm` is six operations; these are four (microseconds at 1 / 16 / 128 rows of 576 in float32, one
    thread: 8.4 / 10.9 / 35 against 14.8 / 19.5 / 69).
    Source: Zhang and Sennrich 2019 (arXiv:1910.07467).
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.addcmul(eps, norm, norm, value=1 / weight.shape[0]).rsqrt_()
    return scale.mul(x).mul_(weight).to(x.dtype)
