"""In which form a model's matrices are held for the CPU's own kernels: int4, int8, bfloat16, float32.

Of int4 and int8 a matrix keeps the values that it is stored with if it can: what GGUF stores in groups of 32 with a
scale and a minimum is packed as it is. The rest is rounded to its format.
"""

from __future__ import annotations

from collections.abc import Mapping

from .gguf_file import read_gguf
from .llama_weights import EMBEDDING, HEAD
from .model_weights import model_weights
from .shape import Checkpoint, ModelShape

PACKED_DTYPES = ("int4", "int8")
"""Names of `[model] dtype` whose weights are integers, which the CPU's own kernels alone multiply."""
FLOAT_BITS = {"bfloat16": 16, "float32": 32}
"""The other dtypes that those kernels multiply -> bits of a weight."""
GROUP_COLUMNS = 32
"""Columns that share a scale and a minimum."""
GROUP_BYTES = {4: 20, 8: 36}
"""Bits of a weight -> bytes of a group: its weights, scale and minimum (float16 each)."""
PANEL_ROWS = 16
"""Rows of a matrix are filled up to a multiple of this."""

_STACKS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("mlp.gate_proj", "mlp.up_proj"),
)
"""Held as one matrix, below each other."""
_WIDE_BITS = 16
"""Of a matrix whose columns make no whole groups: bfloat16."""
_FOUR_BITS = frozenset({"Q4_0", "Q4_1", "Q4_K"})
_UNQUANTIZED = frozenset({"F32", "F16", "BF16"})


def stored_types(checkpoint: Checkpoint, shape: ModelShape) -> dict[str, str]:
    """Canonical name -> GGUF type of each tensor; empty for other formats."""
    if checkpoint.format != "gguf":
        return {}
    tensors = read_gguf(checkpoint.path).tensors
    return {names[1]: tensors[names[0]].type for names in model_weights(shape) if names[0] in tensors}


def packed_dtype(stored: Mapping[str, str]) -> str | None:
    """The packed dtype that is the checkpoint's own, by its first quantized matrix of a layer; None if it has none."""
    types = [kind for name, kind in stored.items() if name.startswith("model.layers.") and kind not in _UNQUANTIZED]
    if not types:
        return None
    return "int4" if any(kind in _FOUR_BITS for kind in types) else "int8"


def held_bits(dtype: str, shape: ModelShape, stored: Mapping[str, str]) -> dict[str, int]:
    """Canonical name of every matrix -> bits of a weight, for a dtype of PACKED_DTYPES or FLOAT_BITS.

    bfloat16 and float32 hold all matrices alike. int4 holds what is stored in four bits or not quantized at all;
    embedding and head, and what is stored in more, have eight. Matrices that are held as one have the bits of the
    widest.
    """
    bits = {}
    for (_, name), size in model_weights(shape).items():
        if len(size) != 2:
            continue
        if dtype in FLOAT_BITS:
            bits[name] = FLOAT_BITS[dtype]
        elif size[1] % GROUP_COLUMNS:
            bits[name] = _WIDE_BITS
        elif dtype == "int8" or name in (EMBEDDING[1], HEAD[1]):
            bits[name] = 8
        else:
            kind = stored.get(name)
            bits[name] = 4 if kind is None or kind in _FOUR_BITS or kind in _UNQUANTIZED else 8
    for layer in range(shape.num_layers):
        for stack in _STACKS:
            names = [f"model.layers.{layer}.{part}.weight" for part in stack]
            bits.update(dict.fromkeys(names, max(bits[name] for name in names)))
    return bits


def packed_bytes(rows: int, columns: int, bits: int) -> int:
    """Of a packed matrix."""
    filled = -(-rows // PANEL_ROWS) * PANEL_ROWS
    if bits in GROUP_BYTES:
        return filled * (columns // GROUP_COLUMNS) * GROUP_BYTES[bits]
    return filled * columns * bits // 8
