"""llama.cpp's server: a row for each GGUF file, for its speed is that of the file's type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from .foreign_python import require_file
from .http_peer import HttpPeer
from .peer import Peer, PeerOptions

NUM_SLOTS = 32
SLOT_TOKENS = 768
"""Of a slot's own cache, but one that is asked for the 2,000-token prompt."""


def find(options: PeerOptions) -> Sequence[Peer]:
    """Raises NotInstalled."""
    binary = require_file(options.llama_server, "--llama-server")
    ggufs = [require_file(gguf, "--llama-gguf") for gguf in options.llama_ggufs]
    return [HttpPeer(f"llama-server {gguf.stem}", _command(binary, gguf, options.num_threads)) for gguf in ggufs]


def _command(binary: Path, gguf: Path, num_threads: int) -> Callable[[int], Sequence[str]]:
    """Slots for every point's concurrency over one cache; prompts are not kept in main memory beside it."""
    threads = str(num_threads)

    def command(port: int) -> Sequence[str]:
        arguments = f"-np {NUM_SLOTS} -c {NUM_SLOTS * SLOT_TOKENS} -t {threads} -tb {threads} -cram 0"
        return [str(binary), "-m", str(gguf), *arguments.split(), "--host", "127.0.0.1", "--port", str(port)]

    return command
