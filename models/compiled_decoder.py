"""A decoder on the CPU whose step is one compiled function, run by a team of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.shape import Checkpoint, ModelShape
from ..checkpoints.weight_formats import PACKED_DTYPES, PANEL_ROWS, held_bits, stored_types
from ..kernels.cpu import step_arguments as kernels
from ..kernels.cpu.entries import compute_logits, run_layers
from ..kernels.cpu.packed_arguments import Packed
from ..kernels.cpu.packing import PackedMatrix
from ..kernels.cpu.quantized_rows import Float32s
from ..kernels.cpu.step_arguments import FINE_FROM, fields_of, make_rows, make_scratch
from ..kernels.cpu.team import Team
from .decoder_weights import Layer, Weights, gather_weights
from .family import Family
from .load import read_pieces
from .packed_form import PackedForm
from .registry import model_family
from .rotary_tables import rotary_tables

PackedWeights = Weights[PackedMatrix, PackedMatrix, Float32s]
_FIRST_CAPACITY = 16
_GELU = "gelu_tanh"


class CompiledDecoder:
    """Packed weights, a team of `num_threads` threads, and the buffers of a step, which grow with the largest seen."""

    def __init__(
        self,
        shape: ModelShape,
        family: Family,
        weights: PackedWeights,
        max_model_len: int,
        num_threads: int,
        activation_bits: int,
    ) -> None:
        """activation_bits: of rows that meet integer weights, 8 (but for outliers) or 15."""
        self.shape, self.weights = shape, weights
        self._fine_from = FINE_FROM[activation_bits]
        self._model = _kernel_model(shape, family, weights, max_model_len)
        self._head = Packed(fields_of(weights.head))
        self._team = Team(num_threads)
        sizes = shape.num_heads, shape.num_kv_heads, shape.head_dim, max_model_len
        self._scratch = [Packed(make_scratch(*sizes)) for _ in range(num_threads)]
        self.times = np.zeros((num_threads, len(kernels.PHASES)), np.int64)
        """Of each thread and phase (`kernels.PHASES`), in the processor's units."""
        self._packed_model, self._packed_state = Packed(self._model), Packed(self._team.state)
        self._packed_times = [Packed(of_thread) for of_thread in self.times]
        self._packed_cache = Packed(())
        self._columns = max(shape.hidden_size, shape.intermediate_size, shape.num_heads * shape.head_dim)
        self._make_buffers(_FIRST_CAPACITY)
        self._make_logits(_FIRST_CAPACITY)

    @property
    def num_weight_bytes(self) -> int:
        """Weights and tables."""
        weights = self.weights
        matrices = {id(matrix): matrix for matrix in (weights.embedding, weights.head, *weights.matrices())}
        vectors = sum(vector.nbytes for vector in weights.vectors())
        return sum(matrix.num_bytes for matrix in matrices.values()) + vectors + self._model.rotary.nbytes

    def forward(self, step: kernels.Step, cache: NDArray[np.generic]) -> Float32s:
        """Run all layers over the tokens of a step.

        cache: [num_layers, 2, num_blocks, kv_heads, block_size, head_dim], float32 or bfloat16 as uint16.
        Returns hidden states after the final norm: float32 [t, hidden_size], valid until the next call.
        """
        num_tokens = step.token_ids.size
        self._ensure(num_tokens)
        state, model, scratch, times = self._packed_state, self._packed_model, self._scratch, self._packed_times
        if self._packed_cache.value is not cache:
            self._packed_cache = Packed(cache)
        buffers, packed_step, packed_cache = self._packed_buffers, Packed(step), self._packed_cache

        def work(index: int) -> None:
            run_layers(state, index, model, packed_step, buffers, packed_cache, scratch[index], times[index])

        self._team.run(work)
        return self._buffers.hidden[:num_tokens]

    def compute_logits(self, hidden: Float32s) -> Float32s:
        """hidden: float32 [k, hidden_size] -> float32 [k, vocab_size], valid until the next call."""
        num_rows = len(hidden)
        self._ensure(num_rows)
        if num_rows > len(self._logits):
            self._make_logits(_capacity(num_rows))
        state, times, rows, head = self._packed_state, self._packed_times, self._packed_rows, self._head
        count, logits = Packed(num_rows), self._packed_logits
        self._buffers.rows.x[:num_rows, : self.shape.hidden_size] = hidden

        def work(index: int) -> None:
            compute_logits(state, index, head, rows, count, logits, times[index])

        self._team.run(work)
        return self._logits[:num_rows, : self.shape.vocab_size]

    def close(self) -> None:
        """End the team."""
        self._team.close()

    def _ensure(self, num_rows: int) -> None:
        if num_rows > len(self._buffers.hidden):
            self._make_buffers(_capacity(num_rows))

    def _make_logits(self, capacity: int) -> None:
        self._logits = np.zeros((capacity, self.weights.head.num_panels * PANEL_ROWS), np.float32)
        self._packed_logits = Packed(self._logits)

    def _make_buffers(self, capacity: int) -> None:
        shape = self.shape
        heads = np.zeros((capacity, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim), np.float32)
        self._buffers = kernels.Buffers(
            hidden=np.zeros((capacity, shape.hidden_size), np.float32),
            rows=make_rows(capacity, self._columns, self._fine_from),
            qkv=heads.reshape(capacity, -1),
            heads=heads,
            wide=np.zeros((capacity, 2 * shape.intermediate_size), np.float32),
            narrow=np.zeros((capacity, shape.hidden_size), np.float32),
        )
        self._packed_buffers, self._packed_rows = Packed(self._buffers), Packed(self._buffers.rows)


def load_compiled_model(
    checkpoint: Checkpoint,
    shape: ModelShape,
    dtype: str,
    max_model_len: int,
    num_threads: int,
    activation_bits: int,
    progress: Callable[[int, int], None] | None = None,
) -> CompiledDecoder:
    """As `load_model`, for a dtype of `weight_formats.PACKED_DTYPES` or `FLOAT_BITS`."""
    family = model_family(shape.architecture)
    bits = held_bits(dtype, shape, stored_types(checkpoint, shape))
    form = PackedForm(bits)
    keeps_quantized = dtype in PACKED_DTYPES  # scales of some types are rounded there
    pieces = read_pieces(checkpoint, shape, family.tensor_shapes(shape), progress, quantized=keeps_quantized)
    weights = gather_weights(shape, family.stacks, family.norm_offset, pieces, form)
    return CompiledDecoder(shape, family, weights, max_model_len, num_threads, activation_bits)


def _capacity(num_rows: int) -> int:
    """Buffers have the size of a power of two, so that few are made."""
    return 1 << (num_rows - 1).bit_length()


def _kernel_model(shape: ModelShape, family: Family, weights: PackedWeights, max_model_len: int) -> kernels.Decoder:
    layers = weights.layers
    tables = np.stack(rotary_tables(shape, max_model_len))
    windows = [window or 0 for window in shape.windows or (None,) * shape.num_layers]
    scale = sqrt(shape.hidden_size) if family.is_embedding_scaled else 1.0
    matrices = [
        [fields_of(matrix) for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)] for layer in layers
    ]
    has_head_norms = len(layers[0].head_norm) > 0
    return kernels.Decoder(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        eps=np.float32(shape.rms_norm_eps),
        scale=np.float32(1 / sqrt(shape.head_dim)),
        is_gelu=family.activation == _GELU,
        embedding_scale=np.float32(scale),
        embedding=fields_of(weights.embedding),
        matrices=np.array(matrices, np.int64),
        norms=np.array([list(_norms(layer)) for layer in layers], np.float32),
        head_norms=np.array(
            [layer.head_norm for layer in layers] if has_head_norms else np.zeros((0, 0, 0)), np.float32
        ),
        final_norm=weights.final_norm,
        windows=np.array(windows, np.int64),
        tables=np.array([len(tables) - 1 if window else 0 for window in windows], np.int64),
        rotary=np.ascontiguousarray(tables),
    )


def _norms(layer: Layer[PackedMatrix, Float32s]) -> Iterator[Float32s]:
    for norm in (layer.input_norm, layer.mlp_norm, layer.after_attention_norm, layer.after_mlp_norm):
        if len(norm):
            yield norm
