"""The architectures that can be served. The registry of models has exactly these names."""

from __future__ import annotations

from ..errors import UnsupportedModel

SUPPORTED_ARCHITECTURES: tuple[str, ...] = ("llama",)
"""Names as in GGUF's `general.architecture`."""

HUGGING_FACE_CLASSES: dict[str, str] = {"LlamaForCausalLM": "llama"}
"""`architectures[0]` of a config.json -> name in SUPPORTED_ARCHITECTURES."""


def unsupported_architecture(name: str, where: str) -> UnsupportedModel:
    """The error for an architecture that is not in the list; `where` is the file that names it."""
    classes = ", ".join(
        f"{architecture} ({' or '.join(cls for cls, name_ in HUGGING_FACE_CLASSES.items() if name_ == architecture)})"
        for architecture in SUPPORTED_ARCHITECTURES
    )
    return UnsupportedModel(
        f"{where} is a model of architecture {name!r}, which is not supported",
        advice=f"supported architectures: {classes}",
    )
