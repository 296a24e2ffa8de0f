"""What the comparison needs of an engine, and what it says of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from ..load import StreamTimes
from .process_tree import TreeMemory

Kind = Literal["http", "offline"]
"""Peers are compared with those of their kind: over HTTP, with the client on the same cores, or in-process."""
FIRST_PROMPT = [67, 68, 69]
"""Of the one token that a start is timed to: ids that the smallest vocabulary has."""


class NotInstalled(Exception):
    """The peer is left out; the text says what is missing."""


class PeerFailed(Exception):
    """The peer did not start, or a request failed: an error of the point, not of the run."""


class PeerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the peers are and what they run; docs/peers.md."""

    model: str
    """MODEL of Callboard."""
    num_threads: int
    dtypes: Sequence[str] = ("auto",)
    """Callboard's, a row each."""
    settings: Sequence[str] = ()
    """Callboard's `--set`, `section.key=value`."""
    llama_server: Path | None = None
    llama_ggufs: Sequence[Path] = ()
    openvino_python: Path | None = None
    openvino_models: Sequence[Path] = ()
    vllm: Path | None = None
    transformers_python: Path | None = None
    transformers_dtypes: Sequence[str] = ("bfloat16",)
    hf_dir: Path | None = None


class Peer(Protocol):
    """One engine with one model: started, driven, stopped, and started again in the next round."""

    name: str
    kind: Kind

    def start(self) -> float:
        """Seconds from the process's start to its first token. Raises PeerFailed, with nothing left running."""

    def run(self, prompts: Sequence[Sequence[int]], concurrency: int, output_len: int) -> list[StreamTimes]:
        """All prompts, `concurrency` at a time, greedily to `output_len` tokens each. Raises PeerFailed."""

    def memory(self) -> TreeMemory:
        """Of the process and all below it, now. Raises PeerFailed if it has ended."""

    def stop(self) -> None:
        """Nothing of it runs when this returns. May be called twice."""
