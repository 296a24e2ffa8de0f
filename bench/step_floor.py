"""Bytes that a decode step cannot do without reading: every matrix once, and the keys and values of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ..checkpoints.llama_weights import EMBEDDING
from ..checkpoints.model_weights import model_weights
from ..checkpoints.shape import ModelShape
from ..kernels.cpu.packing import PackedMatrix
from ..models.compiled_decoder import PackedWeights

ATTENTION = "attention"


def matrix_bytes(weights: PackedWeights) -> dict[str, int]:
    """Phase of `decoder_step.PHASES` -> packed bytes of its matrices. The embedding is not there: a step reads a line
    of it for each row."""
    layers = weights.layers
    of_phase = {
        "qkv": [layer.qkv for layer in layers],
        "output": [layer.output for layer in layers],
        "gate, up": [layer.gate_up for layer in layers],
        "down": [layer.down for layer in layers],
        "head": [weights.head],
    }
    return {phase: sum(map(_num_bytes, matrices)) for phase, matrices in of_phase.items()}


def plain_matrix_bytes(shape: ModelShape, weight_bytes: int) -> int:
    """All of them, `weight_bytes` an element; a head that is tied is the embedding, another embedding is not read."""
    return weight_bytes * sum(_elements(shape))


def kv_bytes(shape: ModelShape, num_rows: int, context: float, element_bytes: int) -> float:
    """Keys and values that `num_rows` tokens look back at, each at `context` tokens, or at its layer's window."""
    windows = shape.windows or (None,) * shape.num_layers
    tokens = sum(min(context, context if window is None else window) for window in windows)
    return 2 * num_rows * tokens * shape.num_kv_heads * shape.head_dim * element_bytes


def _num_bytes(matrix: PackedMatrix) -> int:
    return matrix.num_bytes


def _elements(shape: ModelShape) -> Iterator[int]:
    for names, size in model_weights(shape).items():
        if len(size) == 2 and (names != EMBEDDING or shape.tie_word_embeddings):
            yield prod(size)
