"""Draft heads from the files in which they are published.

| method | config.json                               | tensors                                                    |
|--------|-------------------------------------------|------------------------------------------------------------|
| eagle  | of a Llama of one layer                   | `embed_tokens`, `fc`, `layers.0.*`                         |
| eagle3 | the same, `draft_vocab_size`              | `fc`, `midlayer.*`, `norm`, `lm_head`, `d2t` (and `t2d`)   |
| medusa | `medusa_num_heads`, `medusa_num_layers`   | `0.0.linear.weight`, `0.0.linear.bias`, `0.1.weight`, ...  |
| mtp    | the target's own                          | `model.mtp_layers.0.*` among the target's                  |

In `*.safetensors` alone: what torch has saved (`pytorch_model.bin`, `medusa_lm_head.pt`) is a pickle, which nothing
here reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..checkpoints.mtp_names import MTP_LAYERS
from ..checkpoints.shape import DraftCheckpoint, ModelShape
from ..errors import CorruptCheckpoint
from .decoder import Decoder
from .draft_heads import DecoderLayer, Eagle3Head, EagleHead, LayerHead, MedusaHeads, MtpHead

MTP_PREFIX = MTP_LAYERS + "0."


def load_layer_head(method: str, draft: DraftCheckpoint, target: Decoder, max_model_len: int) -> LayerHead:
    """Raises CorruptCheckpoint where a tensor is missing or of another shape."""
    where = Path(draft.checkpoint.path)
    try:
        return _layer_head(method, where, target, draft.shape, max_model_len)
    except KeyError as error:
        raise _missing(where, str(error.args[0])) from None


def load_medusa(draft: DraftCheckpoint, target: Decoder) -> MedusaHeads:
    """Errors as of `load_layer_head`."""
    where = Path(draft.checkpoint.path)
    config = read_config(where)
    tensors = {name.removeprefix("medusa_head."): tensor for name, tensor in _read(where, target).items()}
    try:
        heads = MedusaHeads(tensors, int(config["medusa_num_heads"]), int(config["medusa_num_layers"]))
    except KeyError as error:
        raise _missing(where, str(error.args[0])) from None
    _check_logits(where, heads.logits(torch.zeros(1, target.shape.hidden_size, dtype=target.compute_dtype), 0), target)
    return heads


def read_config(directory: Path) -> dict[str, int]:
    """Its numbers. Raises CorruptCheckpoint if it is none."""
    try:
        content = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptCheckpoint(f"{directory}/config.json: {error}", advice="fetch the file again") from error
    return cast(dict[str, int], content)


def _layer_head(method: str, where: Path, target: Decoder, shape: ModelShape, max_model_len: int) -> LayerHead:
    tensors = _read(where, target, MTP_PREFIX if method == "mtp" else "")
    prefix = {"eagle": "layers.0.", "eagle3": "midlayer.", "mtp": ""}[method]
    layer = DecoderLayer(shape, target.dtype, tensors, prefix, max_model_len)
    hidden, width = target.shape.hidden_size, tensors[prefix + "self_attn.q_proj.weight"].shape
    wanted = (shape.num_heads * shape.head_dim, hidden * (2 if method == "eagle3" else 1))
    if shape.hidden_size != hidden or tuple(width) != wanted:
        raise CorruptCheckpoint(
            f"{where}: a head of hidden_size {shape.hidden_size:,}, attention over {list(width)}; the target's "
            f"hidden_size is {hidden:,}, which makes it {list(wanted)}",
            advice="name the head that was trained for this model",
        )
    own = tensors.get("embed_tokens.weight")

    def embed(token_ids: Tensor) -> Tensor:
        table = target.weights.embedding if own is None else own
        return torch.nn.functional.embedding(token_ids, table).to(target.compute_dtype)

    match method:
        case "eagle":
            return EagleHead(layer, tensors, embed, target.compute_logits)
        case "mtp":
            return MtpHead(layer, tensors, embed, target.compute_logits)
    vocab_size, num_layers = target.shape.vocab_size, target.shape.num_layers
    config = cast(dict[str, list[int]], read_config(where))
    taps = config.get("eagle_aux_hidden_state_layer_ids") or (2, num_layers // 2, num_layers - 3)
    offsets = tensors.get("d2t")
    ids = None if offsets is None else torch.arange(len(offsets)) + offsets
    if ids is None or ids.max() >= vocab_size:
        num_own = len(tensors["lm_head.weight"]) if ids is None else int(ids.max()) + 1
        _check_vocabulary(where, num_own, vocab_size)
    return Eagle3Head(layer, tensors, ids, embed, taps, vocab_size)


def _read(where: Path, target: Decoder, prefix: str = "") -> dict[str, Tensor]:
    """All tensors by name behind the prefix, floats in the target's compute dtype."""
    try:
        parts = [load_file(path) for path in sorted(where.glob("*.safetensors"))]
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CorruptCheckpoint(f"{where}: {error}", advice="fetch the files again") from error
    return {
        name.removeprefix(prefix): tensor.to(target.device, target.compute_dtype)
        if tensor.is_floating_point()
        else tensor
        for part in parts
        for name, tensor in part.items()
        if name.startswith(prefix)
    }


def _check_logits(where: Path, logits: Tensor, target: Decoder) -> None:
    _check_vocabulary(where, logits.shape[1], target.shape.vocab_size)


def _check_vocabulary(where: Path, num_own: int, vocab_size: int) -> None:
    if num_own != vocab_size:
        raise CorruptCheckpoint(
            f"{where}: a head over {num_own:,} tokens; the target has {vocab_size:,}",
            advice="name the head that was trained for this model",
        )


def _missing(where: Path, name: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"{where} has no {name}", advice="name a head of this method, complete")
