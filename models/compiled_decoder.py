"""A decoder on the CPU whose step is one compiled function, run by a team of threads."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoints.shape import ModelShape
from ..kernels.cpu import decoder_step as kernels
from ..kernels.cpu.attention import Scratch, make_scratch
from ..kernels.cpu.linear import fields_of, make_rows
from ..kernels.cpu.packing import PackedMatrix
from ..kernels.cpu.team import Team
from .rotary import rotary_tables

Float32s = NDArray[np.float32]


class CompiledDecoder:
    """Weights packed for the kernels, and the buffers of a step, which grow with the largest step seen."""

    def __init__(
        self, shape: ModelShape, weights, *, embedding_scale: float, is_gelu: bool, max_model_len: int, num_threads: int
    ) -> None:
        self.shape, self.max_model_len = shape, max_model_len
        self.device = torch.device("cpu")
        self._weights = weights
        self._head = fields_of(weights.head)
        self._model = _kernel_model(shape, weights, embedding_scale, is_gelu, max_model_len)
        self._team = Team(num_threads)
        self._scratch = [
            make_scratch(shape.num_heads, shape.num_kv_heads, shape.head_dim, max_model_len) for _ in range(num_threads)
        ]
        self.times = np.zeros((num_threads, 16), np.int64)
        self._columns = max(shape.hidden_size, shape.intermediate_size, shape.num_heads * shape.head_dim)
        self._buffers = self._make_buffers(16)
        self._logits = np.zeros((16, weights.head.num_panels * 16), np.float32)

    def forward(self, step: kernels.Step, cache: NDArray[np.generic]) -> Tensor:
        """Run all layers; returns hidden states after the final norm, float32 [t, hidden_size], valid until the next
        call."""
        num_tokens = step.token_ids.size
        self._ensure(num_tokens)
        team, model, buffers, scratch = self._team, self._model, self._buffers, self._scratch
        threads, times = team.num_threads, self.times
        team.run(
            lambda index: kernels.run_layers(
                team.state, threads, model, step, buffers, cache, scratch[index], times[index]
            )
        )
        return torch.from_numpy(buffers.hidden[:num_tokens])

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """float32 [k, hidden_size] -> float32 [k, vocab_size], valid until the next call."""
        num_rows = len(hidden)
        self._ensure(num_rows)
        if num_rows > len(self._logits):
            self._logits = np.zeros((1 << (num_rows - 1).bit_length(), self._logits.shape[1]), np.float32)
        team, rows, head, logits = self._team, self._buffers.rows, self._head, self._logits
        rows.x[:num_rows, : self.shape.hidden_size] = hidden.numpy()
        threads, times = team.num_threads, self.times
        team.run(lambda index: kernels.compute_logits(team.state, threads, head, rows, num_rows, logits, times[index]))
        return torch.from_numpy(logits[:num_rows, : self.shape.vocab_size])

    def _ensure(self, num_rows: int) -> None:
        if num_rows > len(self._buffers.hidden):
            self._buffers = self._make_buffers(1 << (num_rows - 1).bit_length())

    def _make_buffers(self, capacity: int) -> kernels.Buffers:
        shape = self.shape
        num_heads = shape.num_heads + 2 * shape.num_kv_heads
        heads = np.zeros((capacity, num_heads, shape.head_dim), np.float32)
        return kernels.Buffers(
            hidden=np.zeros((capacity, shape.hidden_size), np.float32),
            rows=make_rows(capacity, self._columns),
            qkv=heads.reshape(capacity, -1),
            heads=heads,
            wide=np.zeros((capacity, 2 * shape.intermediate_size), np.float32),
            narrow=np.zeros((capacity, shape.hidden_size), np.float32),
        )


def _kernel_model(shape, weights, embedding_scale, is_gelu, max_model_len):
    layers = weights.layers
    norms = [[layer.input_norm, layer.mlp_norm, layer.after_attention_norm, layer.after_mlp_norm] for layer in layers]
    has_four = bool(norms[0][2].numel())
    head_norms = [layer.head_norm.numpy() for layer in layers] if layers[0].head_norm.numel() else np.zeros((0, 0, 0))
    tables = np.stack([table.numpy()[:, :, 0] for table in rotary_tables(shape, max_model_len)])
    windows = [window or 0 for window in shape.windows or (None,) * shape.num_layers]
    return kernels.Decoder(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        eps=np.float32(shape.rms_norm_eps),
        scale=np.float32(1 / sqrt(shape.head_dim)),
        is_gelu=is_gelu,
        embedding_scale=np.float32(embedding_scale),
        embedding=fields_of(weights.embedding),
        matrices=np.stack(
            [[fields_of(m) for m in (layer.qkv, layer.output, layer.gate_up, layer.down)] for layer in layers]
        ),
        norms=np.stack([[norm.numpy() for norm in four[: 4 if has_four else 2]] for four in norms]),
        head_norms=np.ascontiguousarray(head_norms, np.float32),
        final_norm=weights.final_norm.numpy(),
        windows=np.array(windows, np.int64),
        tables=np.array([len(tables) - 1 if window else 0 for window in windows], np.int64),
        rotary=np.ascontiguousarray(tables),
    )
