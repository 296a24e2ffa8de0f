"""What a topology is where no file says it: by the device that computes the model."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from .decode import Table

AUTO = "auto"
_GPU_SCHEDULER = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
"""A step of 8,192 tokens of a prompt takes a GPU as long as a step of some tokens takes a CPU."""
_CONTROL_PLANE = ("frontend", "tokenizer", "scheduler", "grammar")
"""On a GPU each apart: a step is over in milliseconds, and the machine has cores to spare."""


def find_device(device: str) -> str:
    """`device`, or for `auto` what this machine has: `cuda` where an NVIDIA GPU can be seen and Triton is installed,
    else `cpu`. A process that plans has no torch to ask."""
    if device != AUTO:
        return device
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*")) and not is_hidden
    return "cuda" if has_gpu and find_spec("triton") is not None else "cpu"


def default_tables(source: str, device: str) -> Table:
    """Of MODEL `source` on a device: the schema's defaults on `cpu` or `null`; on a GPU larger steps, and each actor in
    a process of its own."""
    tables: Table = {"model": {"source": source}}
    if device == "cpu":
        return tables
    worker = {"name": "worker", "actors": ["worker"], "device": device}
    if not device.startswith("cuda"):
        return tables | {"process": [{"name": "control", "actors": list(_CONTROL_PLANE)}, worker]}
    apart = [{"name": actor, "actors": [actor]} for actor in _CONTROL_PLANE]
    return tables | {"scheduler": dict(_GPU_SCHEDULER), "process": [*apart, worker]}
