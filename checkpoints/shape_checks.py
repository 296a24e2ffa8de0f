"""What must hold between the numbers of a shape, wherever they were read."""

from __future__ import annotations

from ..errors import CorruptCheckpoint
from .shape import ModelShape

MAX_SIZE = 1 << 31
"""No length or size of a model reaches this; a larger one is a malformed file."""
MAX_LAYERS = 10_000

_SIZES = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position",
)


def check_shape(shape: ModelShape, where: str) -> None:
    """Raises CorruptCheckpoint, naming the field, for numbers that no model can have."""
    for name in _SIZES:
        value: int = getattr(shape, name)
        if not 1 <= value < MAX_SIZE:
            raise CorruptCheckpoint(f"{where}: {name} is {value:,}, it must be at least 1 and under {MAX_SIZE:,}")
    if shape.num_layers > MAX_LAYERS:
        raise CorruptCheckpoint(f"{where}: num_layers is {shape.num_layers:,}, the limit is {MAX_LAYERS:,}")
    if shape.num_heads % shape.num_kv_heads:
        raise CorruptCheckpoint(
            f"{where}: num_heads {shape.num_heads} is not a multiple of num_kv_heads {shape.num_kv_heads}"
        )
    if shape.head_dim % 2:
        raise CorruptCheckpoint(f"{where}: head_dim is {shape.head_dim}; rotary embedding needs an even number")
    if not (0.0 < shape.rope_theta < float("inf") and 0.0 < shape.rms_norm_eps < 1.0):
        raise CorruptCheckpoint(
            f"{where}: rope_theta {shape.rope_theta} must be positive and rms_norm_eps {shape.rms_norm_eps} in (0, 1)"
        )
    for window in shape.windows:
        if window is not None and not 1 <= window < MAX_SIZE:
            raise CorruptCheckpoint(f"{where}: a sliding window of {window:,} tokens must be at least 1")
    for name, token_id in (("bos", shape.bos_token_id), *(("eos", end) for end in shape.eos_token_ids)):
        if token_id is not None and not 0 <= token_id < shape.vocab_size:
            raise CorruptCheckpoint(
                f"{where}: the {name} token id {token_id} is outside the vocabulary of {shape.vocab_size:,}"
            )
