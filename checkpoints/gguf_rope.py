"""The scaling of the rotary embedding that a GGUF file asks for."""

from __future__ import annotations

import struct

from ..errors import CorruptCheckpoint, UnsupportedModel
from .gguf_file import GGUFFile
from .rope_scaling import Factors, are_sane, linear_factors
from .shape import ModelShape

ROPE_FACTORS = "rope_freqs.weight"
"""The divisors of all frequencies as a tensor: so the Llama 3.1 scaling is stored."""


def refuse_ropes(file: GGUFFile, architecture: str) -> None:
    """Raises UnsupportedModel for a kind of scaling that is not known."""
    kind = file.text(f"{architecture}.rope.scaling.type")
    if kind not in (None, "none", "linear"):
        raise UnsupportedModel(
            f"{file.path}: {architecture}.rope.scaling.type {kind!r} is not supported in a GGUF file",
            advice="linear scaling and factors in rope_freqs.weight are; a Hugging Face directory may use yarn too",
        )
    for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if name in file.tensors:
            raise UnsupportedModel(f"{file.path}: rope scaling by length (tensor {name!r}) is not supported")


def read_rope_factors(file: GGUFFile, shape: ModelShape) -> Factors:
    """The divisors of `ModelShape.rope_factors`; none without scaling."""
    factors = _stored_factors(file, shape)
    linear = _linear_factor(file, shape.architecture)
    if linear is not None:
        scaled = linear_factors(shape.head_dim, linear)
        factors = tuple(a * b for a, b in zip(factors, scaled, strict=True)) if factors else scaled
    if not are_sane(factors):
        raise CorruptCheckpoint(f"{file.path}: a factor of the rope scaling is not a positive number")
    return factors


def _linear_factor(file: GGUFFile, architecture: str) -> float | None:
    """`rope.scale_linear` is the name before there were types."""
    for field in ("rope.scaling.factor", "rope.scale_linear"):
        value = file.number(f"{architecture}.{field}")
        if value not in (None, 0.0, 1.0) and file.text(f"{architecture}.rope.scaling.type") != "none":
            return value
    return None


def _stored_factors(file: GGUFFile, shape: ModelShape) -> Factors:
    tensor = file.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return ()
    num_pairs = shape.head_dim // 2
    if tensor.type != "F32" or tensor.dims != (num_pairs,):
        raise CorruptCheckpoint(
            f"{file.path}: tensor {ROPE_FACTORS!r} is {tensor.type} {list(tensor.dims)}, it must be F32 [{num_pairs}]"
        )
    with open(file.path, "rb") as stored:
        stored.seek(tensor.offset)
        return struct.unpack(f"<{num_pairs}f", stored.read(tensor.num_bytes))
