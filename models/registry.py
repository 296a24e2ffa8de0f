"""Architecture names and the families that implement them; the names are those of `checkpoints`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UnsupportedModel
from .decoder_weights import HEAD_NORMS, MATRICES
from .family import Family

if TYPE_CHECKING:
    from .decoder import Forward


def _llama() -> Forward:
    from .llama import forward

    return forward


def _qwen3() -> Forward:
    from .qwen3 import forward

    return forward


def _gemma3() -> Forward:
    from .gemma3 import forward

    return forward


_NORMS = {"input_norm": ("input_layernorm.weight",), "mlp_norm": ("post_attention_layernorm.weight",)}
_GEMMA_NORMS = {
    "input_norm": ("input_layernorm.weight",),
    "after_attention_norm": ("post_attention_layernorm.weight",),
    "mlp_norm": ("pre_feedforward_layernorm.weight",),
    "after_mlp_norm": ("post_feedforward_layernorm.weight",),
}
LLAMA = Family(_llama, {**MATRICES, **_NORMS})
QWEN3 = Family(_qwen3, {**MATRICES, **_NORMS, **HEAD_NORMS})
GEMMA3 = Family(
    _gemma3,
    {**MATRICES, **_GEMMA_NORMS, **HEAD_NORMS},
    norm_offset=1.0,
    activation="gelu_tanh",
    is_embedding_scaled=True,
)

MODELS: dict[str, Family] = {"llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": QWEN3, "gemma3": GEMMA3}


def model_family(architecture: str) -> Family:
    """The family of `architecture`; UnsupportedModel names it and what there is."""
    try:
        return MODELS[architecture]
    except KeyError:
        raise UnsupportedModel(
            f"architecture {architecture!r} is not supported (supported: {', '.join(sorted(MODELS))})",
            advice="choose a model of a supported architecture",
        ) from None
