"""Tensors of a GGUF file under their canonical names, dequantized as they are read."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from ..checkpoints.shape import ModelShape
from ..errors import UnsupportedModel
from .gguf_file import GGUFFile, GGUFTensor
from .tensors import StoredTensor

_PLAIN_KINDS = tuple(GGMLQuantizationType[name] for name in ("F32", "F16", "BF16"))
"""Of tensors with one axis, too: a quantized block does not divide into rows there."""
_SUPPORTED_KINDS = tuple(GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"))

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_INTERLEAVED = ("attn_q.weight", "attn_k.weight")


def open_gguf(path: str, shape: ModelShape) -> dict[str, StoredTensor]:
    """Every tensor of the file by canonical name (its own name where it has no canonical one); no weight is read yet.

    Raises CorruptCheckpoint (cut off, damaged) and UnsupportedModel (a tensor type that is not supported).
    """
    file = GGUFFile(path)
    stored = {}
    for tensor in file.tensors.values():
        if tensor.kind not in (_SUPPORTED_KINDS if len(tensor.shape) > 1 else _PLAIN_KINDS):
            raise UnsupportedModel(
                f"{path}: {tensor.name} is stored as {tensor.kind.name}"
                f" (supported: {', '.join(kind.name for kind in _SUPPORTED_KINDS)};"
                f" of one axis: {', '.join(kind.name for kind in _PLAIN_KINDS)})",
                advice="choose a file in one of the supported types",
            )
        name = canonical_name(tensor.name)
        interleaved = tensor.name.startswith("blk.") and tensor.name.endswith(_INTERLEAVED)
        stored[name] = _stored_tensor(file, tensor, name, shape.head_dim if interleaved else None)
    return stored


def canonical_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix == "blk" and part in _LAYER_NAMES:
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}"
    return name


def undo_interleaving(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads from llama.cpp's order back to the order of two halves.

    llama.cpp rotates neighbouring pairs, so its converter stores row `half * head_dim / 2 + i` of each head at
    `2 i + half`. rows: [num_heads * head_dim, in_features]; returns the same shape.
    """
    return rows.view(-1, head_dim // 2, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _stored_tensor(file: GGUFFile, tensor: GGUFTensor, name: str, head_dim: int | None) -> StoredTensor:
    is_matrix = len(tensor.shape) > 1

    def read_rows(first: int, last: int) -> Tensor:
        raw = file.bytes_of(tensor, first, last)
        if tensor.kind == GGMLQuantizationType.BF16:
            rows = torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16)
        elif tensor.kind == GGMLQuantizationType.F16:
            rows = torch.from_numpy(raw.view(np.float16))
        else:
            rows = torch.from_numpy(dequantize(raw, tensor.kind))
        if not is_matrix:
            return rows.flatten()
        return rows if head_dim is None else undo_interleaving(rows, head_dim)

    return StoredTensor(name, tensor.shape, tensor.num_bytes, head_dim or 1, read_rows)
