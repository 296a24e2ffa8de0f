"""transformers' `generate` over static batches, in its own process: a row for each dtype."""

from __future__ import annotations

from collections.abc import Sequence

from .foreign_python import require_file, require_module, worker_command
from .line_peer import LinePeer
from .peer import Peer, PeerOptions


def find(options: PeerOptions) -> Sequence[Peer]:
    """Raises NotInstalled."""
    python = require_module(options.transformers_python, "--transformers-python", "transformers")
    folder = require_file(options.hf_dir, "--hf-dir")
    return [
        LinePeer(
            f"transformers {dtype}",
            worker_command(python, "transformers_engine.py", str(folder), str(options.num_threads), dtype),
        )
        for dtype in options.transformers_dtypes
    ]
