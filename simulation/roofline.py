"""A step's time from a model's shape and a device's rates.

A step is linear layers, then attention, each as long as the slower of its memory traffic and its arithmetic:

    linear    = max(matrix bytes / bandwidth, 2 * (matrix elements * tokens + head elements * samples) / FLOP/s)
    attention = max(K/V bytes / bandwidth, 4 * layers * heads * head_dim * pairs / FLOP/s)
    step      = overhead + rows * row overhead + linear + attention

with the bandwidth and FLOP/s that the device reaches. Every matrix is read once a step, the head only if a row samples;
keys and values once for each row and position that it looks at; what is written, and activations, do not count. A layer
with a window sees no more than its window of a row's context; rows are taken to be of equal length for that.
(Williams, Waterman, Patterson: Roofline, CACM 2009.)
"""

from __future__ import annotations

from math import prod

from ..checkpoints.llama_weights import EMBEDDING, HEAD
from ..checkpoints.model_weights import model_weights
from ..checkpoints.shape import ModelShape
from .devices import DeviceSpec
from .step_load import StepLoad

NS_PER_S = 1e9


class Roofline:
    """`StepTimes` of one model on one device."""

    def __init__(self, shape: ModelShape, device: DeviceSpec, dtype_bytes: int = 2, kv_dtype_bytes: int = 2) -> None:
        weights = model_weights(shape)
        head = prod(weights.pop(HEAD, weights.pop(EMBEDDING)))
        matrices = sum(prod(size) for size in weights.values() if len(size) > 1)
        bytes_per_s = device.bandwidth * device.bandwidth_share
        flops = device.flops * device.flops_share
        self._matrix_ns = NS_PER_S * matrices * dtype_bytes / bytes_per_s
        self._head_ns = NS_PER_S * head * dtype_bytes / bytes_per_s
        self._token_ns = NS_PER_S * 2 * matrices / flops
        self._sample_ns = NS_PER_S * 2 * head / flops
        self._context_ns = NS_PER_S * shape.kv_bytes_per_token(kv_dtype_bytes) / shape.num_layers / bytes_per_s
        """Of one position in one layer."""
        self._pair_ns = NS_PER_S * 4 * shape.num_heads * shape.head_dim / flops
        """Of one pair in one layer."""
        windows = shape.windows or (None,) * shape.num_layers
        self._has_no_windows, self._num_all_layers = not any(windows), shape.num_layers
        self._num_layers = {window: windows.count(window) for window in dict.fromkeys(windows)}
        self._step_ns = device.step_overhead_us * 1e3
        self._row_ns = device.row_overhead_us * 1e3

    def step_ns(self, load: StepLoad) -> int:
        """Nanoseconds of a step."""
        memory_ns = self._matrix_ns + (self._head_ns if load.num_samples else 0.0)
        compute_ns = self._token_ns * load.num_tokens + self._sample_ns * load.num_samples
        fixed_ns = self._step_ns + self._row_ns * (load.num_decode_rows + load.num_prefill_rows)
        return round(fixed_ns + max(memory_ns, compute_ns) + self._attention_ns(load))

    def _attention_ns(self, load: StepLoad) -> float:
        context = load.context_tokens + load.prefill_context_tokens
        pairs = load.context_tokens + load.prefill_pairs
        total = 0.0
        if self._has_no_windows:
            return self._num_all_layers * max(context * self._context_ns, pairs * self._pair_ns)
        for window, num_layers in self._num_layers.items():
            seen = context if window is None else min(context, window * (load.num_rows + load.num_prefill_tokens))
            met = pairs if window is None else min(pairs, window * load.num_tokens)
            total += num_layers * max(seen * self._context_ns, met * self._pair_ns)
        return total
