"""vLLM's CPU backend over HTTP, in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

from .foreign_python import require_file
from .http_peer import HttpPeer
from .peer import Peer, PeerOptions

CACHE_GIB = 2


def find(options: PeerOptions) -> Sequence[Peer]:
    """Raises NotInstalled."""
    binary = require_file(options.vllm, "--vllm")
    folder = require_file(options.hf_dir, "--hf-dir")
    command = [str(binary), "serve", str(folder), "--dtype", "bfloat16", "--host", "127.0.0.1"]
    limits = ["--max-model-len", "4096", "--max-num-seqs", "32"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB), "HF_HUB_OFFLINE": "1"}
    return [HttpPeer("vLLM bf16", lambda port: [*command, *limits, "--port", str(port)], environment)]
