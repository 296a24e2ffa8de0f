"""A checkpoint's shape, whatever its format."""

from __future__ import annotations

from typing import assert_never

from .gguf_shape import read_gguf_shape
from .hf_shape import read_hf_config, read_hf_shape
from .shape import Checkpoint, ModelShape


def read_shape(checkpoint: Checkpoint) -> ModelShape:
    """The shape of the model; its files' heads are checked, no weight is read.

    Raises UnsupportedModel (an architecture outside SUPPORTED_ARCHITECTURES, a field or a tensor type that is not
    supported, by name) and CorruptCheckpoint (truncated, malformed, a tensor missing or of another shape).
    """
    match checkpoint.format:
        case "gguf":
            return read_gguf_shape(checkpoint.path)
        case "safetensors":
            return read_hf_shape(checkpoint.path)
        case "dummy":
            return read_hf_config(checkpoint.path)
        case _ as unknown:
            assert_never(unknown)
