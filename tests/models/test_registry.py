"""What architectures there are."""

from __future__ import annotations

import pytest

import callboard.checkpoints as checkpoints
from callboard.errors import UnsupportedModel
from callboard.models.registry import LLAMA, MODELS, model_family


def test_llama_is_known():
    assert model_family("llama") is LLAMA


def test_an_unknown_architecture_is_refused_with_the_list_of_those_supported():
    with pytest.raises(
        UnsupportedModel, match=r"'mamba9' is not supported \(supported: gemma3, llama, mistral, qwen2, qwen3\)"
    ):
        model_family("mamba9")


def test_the_registry_has_what_checkpoints_lets_through():
    assert tuple(MODELS) == checkpoints.SUPPORTED_ARCHITECTURES
