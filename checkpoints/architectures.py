"""The architectures that can be served. The registry of models has exactly these names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import UnsupportedModel
from .json_file import decode_json_file

HUGGING_FACE_CLASSES: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "MiMoForCausalLM": "qwen2",
}
"""`architectures[0]` of a config.json -> name in SUPPORTED_ARCHITECTURES."""

HUGGING_FACE_MODEL_TYPES: dict[str, str] = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
"""`model_type` of a config.json without `architectures`."""

SUPPORTED_ARCHITECTURES: tuple[str, ...] = tuple(dict.fromkeys(HUGGING_FACE_CLASSES.values()))

GGUF_ARCHITECTURES: tuple[str, ...] = ("llama", "qwen2", "qwen3", "gemma3")
"""`general.architecture` of a GGUF file; there a Mistral is a `llama`."""

_ADVICE: dict[str, str] = {
    "Gemma3ForConditionalGeneration": "this checkpoint takes images; only its text model, as Gemma3ForCausalLM in a"
    " checkpoint of its own, or as a GGUF file, can be served",
}
"""For architectures that are near to a supported one."""


def unsupported_architecture(name: str, where: str) -> UnsupportedModel:
    """The error for an architecture that is not in the lists; `where` is the file that names it."""
    classes = ", ".join(
        f"{architecture} ({' or '.join(cls for cls, name_ in HUGGING_FACE_CLASSES.items() if name_ == architecture)})"
        for architecture in SUPPORTED_ARCHITECTURES
    )
    advice = f"supported architectures: {classes}"
    if name in _ADVICE:
        advice = f"{_ADVICE[name]}; {advice}"
    return UnsupportedModel(f"{where} is a model of architecture {name!r}, which is not supported", advice=advice)


class _Architectures(msgspec.Struct):
    architectures: list[str] | None = None
    model_type: str | None = None


def hf_architecture(path: Path) -> str:
    """The name in SUPPORTED_ARCHITECTURES of the model whose config.json is at `path`; UnsupportedModel if none is."""
    named = decode_json_file(path, _Architectures)
    if named.architectures:
        name, known = named.architectures[0], HUGGING_FACE_CLASSES
    else:
        name, known = named.model_type or "", HUGGING_FACE_MODEL_TYPES
    if name not in known:
        raise unsupported_architecture(name, str(path))
    return known[name]
