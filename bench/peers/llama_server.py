"""llama.cpp's server: a row for each GGUF file, for its speed is that of the file's type.

Its slots share out the cache evenly when it starts. Room for the longest prompt in each of 32 slots would be most of
its memory, and one cache for all slots slows them; so a prompt that is longer than a slot gets a server of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..load import StreamTimes
from .foreign_python import require_file
from .http_peer import HttpPeer
from .peer import Kind, Peer, PeerOptions
from .process_tree import TreeMemory

NUM_SLOTS, SLOT_TOKENS = 32, 768
LONG_SLOT_TOKENS = 4096


class LlamaServer:
    """Two servers, of which at most one runs: with many slots, or with a long one."""

    kind: Kind = "http"

    def __init__(self, binary: Path, gguf: Path, num_threads: int) -> None:
        self.name = f"llama-server {gguf.stem}"
        self._many = HttpPeer(self.name, _command(binary, gguf, num_threads, NUM_SLOTS, SLOT_TOKENS))
        self._long = HttpPeer(self.name, _command(binary, gguf, num_threads, 1, LONG_SLOT_TOKENS))
        self._running = self._many
        self._memory: TreeMemory | None = None
        """Of the server with many slots, when it was stopped for the other."""

    def start(self) -> float:
        self._running, self._memory = self._many, None
        return self._many.start()

    def run(self, prompts: Sequence[Sequence[int]], concurrency: int, output_len: int) -> list[StreamTimes]:
        longest = max(len(prompt) for prompt in prompts) + output_len
        self._switch_to(self._many if longest < SLOT_TOKENS else self._long)
        return self._running.run(prompts, concurrency, output_len)

    def memory(self) -> TreeMemory:
        return self._many.memory() if self._memory is None else self._memory

    def stop(self) -> None:
        self._many.stop()
        self._long.stop()

    def _switch_to(self, server: HttpPeer) -> None:
        if server is self._running:
            return
        self._memory = self._many.memory() if self._running is self._many else None
        self._running.stop()
        self._running = server
        server.start()


def find(options: PeerOptions) -> Sequence[Peer]:
    """Raises NotInstalled."""
    binary = require_file(options.llama_server, "--llama-server")
    ggufs = [require_file(gguf, "--llama-gguf") for gguf in options.llama_ggufs]
    return [LlamaServer(binary, gguf, options.num_threads) for gguf in ggufs]


def _command(
    binary: Path, gguf: Path, num_threads: int, num_slots: int, slot_tokens: int
) -> Callable[[int], Sequence[str]]:
    """Prompts are not kept in main memory beside the cache."""
    threads = str(num_threads)
    slots = ["-np", str(num_slots), "-c", str(num_slots * slot_tokens), "--no-kv-unified", "-cram", "0"]
    fixed = [str(binary), "-m", str(gguf), "-t", threads, "-tb", threads, *slots, "--host", "127.0.0.1"]
    return lambda port: [*fixed, "--port", str(port)]
