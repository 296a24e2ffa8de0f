"""OpenVINO GenAI's continuous batching, in its own process: a row for each exported model."""

from __future__ import annotations

from collections.abc import Sequence

from .foreign_python import require_file, require_module, worker_command
from .line_peer import LinePeer
from .peer import NotInstalled, Peer, PeerOptions


def find(options: PeerOptions) -> Sequence[Peer]:
    """Raises NotInstalled."""
    python = require_module(options.openvino_python, "--openvino-python", "openvino_genai")
    if not options.openvino_models:
        raise NotInstalled("no --openvino-model is given")
    folders = [require_file(folder, "--openvino-model") for folder in options.openvino_models]
    return [
        LinePeer(
            f"OpenVINO {folder.name}",
            worker_command(python, "openvino_engine.py", str(folder), str(options.num_threads)),
        )
        for folder in folders
    ]
