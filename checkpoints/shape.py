"""What a model is, as far as it can be known without torch: where its files are, its shape, its sizes."""

from __future__ import annotations

from typing import Literal

import msgspec


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """MODEL resolved to local files."""

    source: str
    """As the user named it."""
    format: Literal["gguf", "safetensors", "dummy"]
    path: str
    """The .gguf file, or the directory that holds config.json and, but for `dummy`, *.safetensors."""
    name: str
    """Short name for `model` in the API when the topology names none."""


class ModelShape(msgspec.Struct, frozen=True, array_like=True):
    """The numbers that fix a decoder-only transformer's sizes. Lengths in tokens, sizes in elements."""

    architecture: str
    """Name in the registry of models, e.g. `llama`."""
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    num_parameters: int
    """Elements of all weight tensors that a loaded model holds (a tied head counts once)."""
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    """Of attention's output projection."""
    has_mlp_bias: bool = False
    rope_factors: tuple[float, ...] = ()
    """The frequency of pair i of a head is divided by entry i (head_dim / 2 of them); empty: none is scaled."""
    rope_magnitude: float = 1.0
    """Cosines and sines are multiplied by it."""
    windows: tuple[int | None, ...] = ()
    """By layer: how many tokens one sees, itself included; None: all before it. Empty: no layer has a window."""
    window_rope_theta: float | None = None
    """Of the layers that have a window, whose frequencies are then not scaled; None: as in the others."""
    query_divisor: float | None = None
    """Scores are divided by its square root; None: by that of head_dim."""

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes

    @property
    def num_rotary_tables(self) -> int:
        """One, or two where layers with a window turn at another speed."""
        return 1 if self.window_rope_theta is None else 2


class DraftCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """The model that drafts for another, or the head of one."""

    checkpoint: Checkpoint
    shape: ModelShape
    """Of a head: the layers that have keys and values."""
    num_head_elements: int | None = None
    """Of all tensors of a head; None: it is a model."""
