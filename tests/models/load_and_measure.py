"""Run as a program: load a model and say in JSON how much anonymous memory that took, against what was planned.

Arguments: format (gguf, safetensors, dummy), path. Anonymous memory is what the process owns; pages of mapped files,
which the kernel takes back when it needs them, are not in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from callboard.checkpoints import Checkpoint, read_shape
from callboard.models.load import load_model
from callboard.models.registry import model_family

CPU = torch.device("cpu")
MAX_LEN = 64


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


def main(kind: str, path: str) -> None:
    torch.set_num_threads(1)
    checkpoint = Checkpoint(path, kind, path, "x")  # type: ignore[arg-type]
    shape = read_shape(checkpoint)
    before, seen = anonymous_bytes(), []
    model = load_model(checkpoint, shape, torch.float32, CPU, MAX_LEN, lambda _, __: seen.append(anonymous_bytes()))
    planned = model_family(shape.architecture).planned_bytes(shape, torch.float32, CPU, MAX_LEN)
    assert model.num_weight_bytes == planned
    print(json.dumps({"planned": planned, "peak": max(*seen, anonymous_bytes()) - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
