"""The forward pass of a decoder that is compiled for the CPU: one call a step."""

from __future__ import annotations

import mmap
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.shape import ModelShape
from ..kernels.cpu.quantized_rows import Float32s
from ..kernels.cpu.step_arguments import TILE_QUERIES, Step
from ..models.compiled_decoder import CompiledDecoder
from .host_sampler import HostSampler
from .input_batch import InputBatch
from .prepare_inputs import StepInputs


class BlockCache:
    """Keys and values: [num_layers, 2, num_blocks, kv_heads, block_size, head_dim], float32 or bfloat16. A block's
    keys of one head lie side by side.

    Memory is touched as blocks come into use. It is mapped here because numpy asks the kernel for large pages: the
    first block, which has a place in every layer, would then take 4 MiB of each; steps of 4 rows of 2,000 tokens and of
    16 rows of 256 took as long either way.
    """

    def __init__(self, shape: ModelShape, num_blocks: int, block_size: int, dtype: str) -> None:
        size = (shape.num_layers, 2, num_blocks, shape.num_kv_heads, block_size, shape.head_dim)
        self.block_size = block_size
        kind = np.dtype(np.float32 if dtype == "float32" else np.uint16)
        memory = mmap.mmap(-1, prod(size) * kind.itemsize)
        self.array: NDArray[np.generic] = np.frombuffer(memory, kind).reshape(size)
        """bfloat16 as its bits."""


class CompiledForward:
    """Of a `CompiledDecoder`; `kv_dtype`: float32 or bfloat16."""

    def __init__(self, model: CompiledDecoder, *, num_blocks: int, block_size: int, kv_dtype: str) -> None:
        self.model = model
        self.kv = BlockCache(model.shape, num_blocks, block_size, kv_dtype)
        self.shape = model.shape
        self._tokens_at_once = max(1, TILE_QUERIES // (model.shape.num_heads // model.shape.num_kv_heads))

    @property
    def num_weight_bytes(self) -> int:
        return self.model.num_weight_bytes

    def hidden_states(self, inputs: StepInputs, batch: InputBatch) -> Float32s:
        step = Step(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            slots=inputs.slot_mapping,
            block_tables=batch.block_table,
            table_rows=inputs.rows,
            pieces=self._pieces(inputs),
        )
        return self.model.forward(step, self.kv.array)

    def make_sampler(self, batch: InputBatch) -> HostSampler:
        return HostSampler(self.model.compute_logits, batch, self.shape.vocab_size)

    def _pieces(self, inputs: StepInputs) -> NDArray[np.int32]:
        """int32 [m, 3]: row of the step, first token, number of tokens: a row's tokens in parts that attend at once."""
        counts = -(-inputs.num_tokens // self._tokens_at_once)
        rows = np.repeat(np.arange(counts.size), counts)
        offsets = (np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)) * self._tokens_at_once
        sizes = np.minimum(inputs.num_tokens[rows] - offsets, self._tokens_at_once)
        return np.stack((rows, inputs.query_starts[rows] + offsets, sizes), axis=1).astype(np.int32)
