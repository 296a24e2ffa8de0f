"""Decoders of published shapes with random weights that are made on the GPU, and what their steps must read."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from ..checkpoints import ModelShape
from ..checkpoints.model_weights import count_parameters, has_head_norms
from ..kernels.device_operations import Matrix, Operations
from ..models.decoder_weights import Layer, Weights
from ..models.device_decoder import DeviceDecoder
from ..models.tensor_parallel import TensorParallel
from .llama_shape import LLAMA_3_1_8B

_LLAMA_2_7B = msgspec.structs.replace(
    LLAMA_3_1_8B,
    num_kv_heads=32,
    intermediate_size=11008,
    vocab_size=32000,
    max_position=4096,
    rope_theta=10_000.0,
    num_parameters=0,
)
_QWEN3_06B = msgspec.structs.replace(
    LLAMA_3_1_8B,
    architecture="qwen3",
    num_layers=28,
    hidden_size=1024,
    num_heads=16,
    intermediate_size=3072,
    vocab_size=151936,
    max_position=40960,
    rope_theta=1_000_000.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    num_parameters=0,
)
SHAPES: dict[str, ModelShape] = {
    name: msgspec.structs.replace(shape, num_parameters=count_parameters(shape))
    for name, shape in (
        ("llama-3.1-8b", LLAMA_3_1_8B),
        ("qwen3-0.6b", _QWEN3_06B),
        ("llama-2-7b", _LLAMA_2_7B),
    )
}


def random_decoder(
    shape: ModelShape,
    operations: Operations,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    parallel: TensorParallel | None = None,
) -> DeviceDecoder:
    """Matrices of variance 1 / columns, norms near one; shape: of a rank's share, if there is `parallel`."""
    generator = torch.Generator(device).manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        weight = torch.empty(rows, columns, dtype=dtype, device=device)
        return weight.normal_(std=columns**-0.5, generator=generator)

    def norm(*size: int) -> Tensor:
        return torch.rand(*size, device=device, generator=generator).add_(0.5)

    hidden, query = shape.hidden_size, shape.num_heads * shape.head_dim
    heads = shape.num_heads + shape.num_kv_heads

    def layer() -> Layer[Matrix, Tensor]:
        built = Layer[Matrix, Tensor](
            input_norm=norm(hidden),
            qkv=Matrix(matrix(query + 2 * shape.num_kv_heads * shape.head_dim, hidden)),
            output=Matrix(matrix(hidden, query)),
            mlp_norm=norm(hidden),
            gate_up=Matrix(matrix(2 * shape.intermediate_size, hidden)),
            down=Matrix(matrix(hidden, shape.intermediate_size)),
        )
        return built._replace(head_norm=norm(heads, shape.head_dim)) if has_head_norms(shape) else built

    embedding = matrix(shape.vocab_size, hidden)
    head = Matrix(embedding if shape.tie_word_embeddings else matrix(shape.vocab_size, hidden))
    layers = tuple(layer() for _ in range(shape.num_layers))
    weights = Weights(embedding, layers, norm(hidden), head)
    return DeviceDecoder(shape, weights, operations, max_model_len, parallel=parallel)


def read_bytes(shape: ModelShape, batch: int, context: float, element_bytes: int) -> float:
    """What a decode step of `batch` rows with `context` tokens each must read: matrices, keys and values."""
    parameters = shape.num_parameters - (0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size)
    return parameters * element_bytes + batch * context * shape.kv_bytes_per_token(element_bytes)
