"""Architecture names and the families that implement them; the names are those of `checkpoints`."""

from __future__ import annotations

from ..errors import UnsupportedModel
from .decoder import Family
from .gemma3 import GEMMA3
from .llama import LLAMA
from .qwen3 import QWEN3

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
