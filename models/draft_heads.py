"""Heads that draft for another model from its hidden states: one decoder layer (EAGLE, EAGLE-3, multi-token
prediction), or a few perceptrons (Medusa). Embedding and head of the target are theirs too, where they bring none.

Element i of a row is made of what the target knows at position i (its features there) and of the token at i + 1, and
says what comes at i + 2; where the target has not been yet, the head goes on with what it made of the element before.

    EAGLE    x = fc [embed(t); f];                              y = layer(x), no norm before attention;  logits: head(y)
    EAGLE-3  g = fc f of three layers, or y before;             y = layer([norm(embed(t)); norm(g)], beside g);
             logits: its own head(norm(y)), over a vocabulary of its own that d2t maps to the target's
    MTP      x = proj [norm(f); norm(embed(t))];                y = norm(layer(x));                      logits: head(y)
    Medusa   from f alone, for i + 2 + k:  y = f + silu(W f + b), as often as it has layers;  logits: its own head(y)

Sources: Li et al. 2024 (arXiv:2401.15077); Li et al. 2025 (arXiv:2503.01840); Xiaomi 2025 (arXiv:2505.07608) after
DeepSeek-AI 2024 (arXiv:2412.19437), section 2.2; Cai et al. 2024 (arXiv:2401.10774).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checkpoints.shape import ModelShape
from .norms import rms_norm
from .protocol import Attention
from .rotary import rotate
from .rotary_tables import rotary_tables

Embed = Callable[[Tensor], Tensor]
"""int64 [t] token ids -> [t, hidden_size]"""
Logits = Callable[[Tensor], Tensor]
"""[k, hidden_size] -> float32 [k, vocab_size]"""


class LayerHead(Protocol):
    """One decoder layer. Tensors of the target's compute dtype, on its device."""

    taps: tuple[int, ...]
    """Its features are the target's hidden states in front of these layers, side by side; none: those that it has at
    its end."""

    def features(self, of_target: Tensor) -> Tensor:
        """[t, hidden_size or taps times that] -> [t, hidden_size]: as its own come out of `advance`."""
        ...

    def advance(self, features: Tensor, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Elements: [t, hidden_size], int64 [t] tokens, int64 [t] positions i -> [t, hidden_size]."""
        ...

    def logits(self, made: Tensor) -> Tensor:
        """[k, hidden_size], rows that `advance` made -> float32 [k, vocab_size of the target]."""
        ...


class DecoderLayer:
    """Attention and SwiGLU of one layer by the names of its tensors."""

    def __init__(
        self,
        shape: ModelShape,
        dtype: torch.dtype,
        tensors: Mapping[str, Tensor],
        prefix: str,
        max_model_len: int,
    ) -> None:
        """dtype: of queries, keys and values; tensors: of another one, perhaps, its own names behind `prefix`."""
        self._shape = shape
        self._tensors = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        some = tensors[prefix + "self_attn.q_proj.weight"]
        self.eps = torch.tensor(shape.rms_norm_eps, device=some.device)
        self._dtype, self._width = dtype, some.dtype
        (table,) = rotary_tables(shape, max_model_len)
        self._table = torch.from_numpy(table).unsqueeze(2).to(some.device, some.dtype)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """x as it is where there is no such norm."""
        weight = self._tensors.get(name + ".weight")
        return x if weight is None else rms_norm(x, weight, self.eps)

    def __call__(self, x: Tensor, beside: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """x: [t, what attention takes]; beside: [t, hidden_size], what the layer adds to. Returns [t, hidden_size]."""
        shape, num_tokens = self._shape, x.shape[0]
        q, k, v = (
            self._linear(x, f"self_attn.{name}_proj").view(num_tokens, -1, shape.head_dim) for name in ("q", "k", "v")
        )
        cos, sin = self._table.index_select(0, positions).unbind(1)
        q, k = (rotate(heads, cos, sin).to(self._dtype) for heads in (q, k))
        attended = attention(0, q, k, v.to(self._dtype))
        hidden = beside + self._linear(attended.to(self._width), "self_attn.o_proj")
        y = self.norm(hidden, "post_attention_layernorm")
        gated = F.silu(self._linear(y, "mlp.gate_proj")) * self._linear(y, "mlp.up_proj")
        return hidden + self._linear(gated, "mlp.down_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._tensors[name + ".weight"], self._tensors.get(name + ".bias"))


class EagleHead:
    """Of tensors `fc.*`, `layers.0.*` and, if it brings one, `embed_tokens.weight`."""

    taps: tuple[int, ...] = ()

    def __init__(self, layer: DecoderLayer, tensors: Mapping[str, Tensor], embed: Embed, target_logits: Logits) -> None:
        self._layer, self._embed, self._target_logits = layer, embed, target_logits
        self._fc, self._fc_bias = tensors["fc.weight"], tensors.get("fc.bias")

    def features(self, of_target: Tensor) -> Tensor:
        return of_target

    def advance(self, features: Tensor, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        x = F.linear(torch.cat((self._embed(token_ids), features), dim=-1), self._fc, self._fc_bias)
        return self._layer(self._layer.norm(x, "input_layernorm"), x, positions, attention)

    def logits(self, made: Tensor) -> Tensor:
        return self._target_logits(made)


class Eagle3Head:
    """Of tensors `fc.weight`, `midlayer.*`, `norm.weight`, `lm_head.weight`, `d2t` and, if it brings one,
    `embed_tokens.weight`."""

    def __init__(
        self,
        layer: DecoderLayer,
        tensors: Mapping[str, Tensor],
        token_ids: Tensor | None,
        embed: Embed,
        taps: Sequence[int],
        vocab_size: int,
    ) -> None:
        """token_ids: int64 [draft vocabulary], which of the target's tokens each of its own is; None: the same."""
        self.taps = tuple(taps)
        self._layer, self._embed, self._vocab_size = layer, embed, vocab_size
        self._fc, self._norm, self._head = (tensors[name + ".weight"] for name in ("fc", "norm", "lm_head"))
        self._fc_bias, self._token_ids = tensors.get("fc.bias"), token_ids

    def features(self, of_target: Tensor) -> Tensor:
        return F.linear(of_target, self._fc, self._fc_bias)

    def advance(self, features: Tensor, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        embedded = self._layer.norm(self._embed(token_ids), "input_layernorm")
        x = torch.cat((embedded, self._layer.norm(features, "hidden_norm")), dim=-1)
        return self._layer(x, features, positions, attention)

    def logits(self, made: Tensor) -> Tensor:
        own = F.linear(rms_norm(made, self._norm, self._layer.eps), self._head).float()
        if self._token_ids is None:
            return own
        logits = own.new_full((own.shape[0], self._vocab_size), -torch.inf)
        logits[:, self._token_ids] = own
        return logits


class MtpHead:
    """Of tensors `input_proj.weight`, `token_layernorm.weight`, `hidden_layernorm.weight`, `final_layernorm.weight` and
    those of a layer."""

    taps: tuple[int, ...] = ()

    def __init__(self, layer: DecoderLayer, tensors: Mapping[str, Tensor], embed: Embed, target_logits: Logits) -> None:
        self._layer, self._embed, self._target_logits = layer, embed, target_logits
        self._proj = tensors["input_proj.weight"]

    def features(self, of_target: Tensor) -> Tensor:
        return of_target

    def advance(self, features: Tensor, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        embedded = self._embed(token_ids).masked_fill((positions == 0)[:, None], 0.0)  # as it was trained
        normed = self._layer.norm(features, "hidden_layernorm"), self._layer.norm(embedded, "token_layernorm")
        x = F.linear(torch.cat(normed, dim=-1), self._proj)
        made = self._layer(self._layer.norm(x, "input_layernorm"), x, positions, attention)
        return self._layer.norm(made, "final_layernorm")

    def logits(self, made: Tensor) -> Tensor:
        return self._target_logits(made)


class MedusaHeads:
    """Of tensors `k.j.linear.weight`, `k.j.linear.bias` for the layers j of head k, and `k.J.weight` behind them."""

    def __init__(self, tensors: Mapping[str, Tensor], num_heads: int, num_layers: int) -> None:
        self.num_heads = num_heads
        self._blocks = [
            [(tensors[f"{head}.{j}.linear.weight"], tensors[f"{head}.{j}.linear.bias"]) for j in range(num_layers)]
            for head in range(num_heads)
        ]
        self._heads = [tensors[f"{head}.{num_layers}.weight"] for head in range(num_heads)]

    def logits(self, features: Tensor, head: int) -> Tensor:
        """[k, hidden_size] at position i of k rows -> float32 [k, vocab_size] for the token at i + 2 + head."""
        for weight, bias in self._blocks[head]:
            features = features + F.silu(F.linear(features, weight, bias))
        return F.linear(features, self._heads[head]).float()
