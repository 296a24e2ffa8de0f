"""A peer without HTTP: a process that runs `offline_worker` over its engine and is told by lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from ..load import StreamTimes
from .child import Child, ChildPeer
from .peer import Kind, PeerFailed


class _Answer(msgspec.Struct):
    """A worker's line."""

    streams: list[tuple[float, float, float, int]] = []
    error: str | None = None


class LinePeer(ChildPeer):
    """`command` starts the worker, `python -P offline_worker.py ENGINE_FILE ARGUMENT...` or what does the same."""

    kind: Kind = "offline"

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._command, self._environment = command, environment or {}

    def start(self) -> float:
        begun = time.perf_counter()
        self._child = Child(self._command, environment=self._environment, pipes=True)
        try:
            self._read()  # its first line comes with its first token
            return time.perf_counter() - begun
        except BaseException:
            self.stop()
            raise

    def run(self, prompts: Sequence[Sequence[int]], concurrency: int, output_len: int) -> list[StreamTimes]:
        if self._child is None:
            raise PeerFailed("does not run")
        assert self._child.process.stdin is not None
        order = {"prompts": prompts, "concurrency": concurrency, "output_len": output_len}
        try:
            self._child.process.stdin.write(msgspec.json.encode(order).decode() + "\n")
            self._child.process.stdin.flush()
        except OSError as error:
            raise self._child.fail(f"takes no more orders: {error}") from error
        streams = [StreamTimes(*stream) for stream in self._read().streams]
        lengths = sorted({stream.num_tokens for stream in streams})
        if len(streams) != len(prompts) or lengths != [output_len]:
            raise PeerFailed(f"{len(streams)} of {len(prompts)} answers with {lengths} of {output_len} tokens")
        return streams

    def _read(self) -> _Answer:
        assert self._child is not None and self._child.process.stdout is not None
        line = self._child.process.stdout.readline()
        if not line:
            raise self._child.fail(f"ended with status {self._child.process.wait()}")
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error is not None:
            raise self._child.fail(answer.error)
        return answer
