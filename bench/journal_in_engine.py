"""The CPU time that an engine's control process takes for a step, with a journal and without one.

The control process has frontend, tokenizer and scheduler; the worker is a null device, so that the control process is
what works. Both engines stand side by side and are loaded in turns, which begin with the one and with the other
alternately; a turn is so many streams at once, all of the same length.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from .load import run_load
from .overlap import read_counter
from .process_samples import cpu_s
from .random_model import NUM_BYTE_TOKENS, write_random_model
from .server_process import ServerProcess

PAIRS = 5
INPUT_LEN = 32
OUTPUT_LEN = 800
"""Tokens of each stream, and about as many steps of a turn."""


class ControlCost(msgspec.Struct, frozen=True):
    """Microseconds of CPU a step of the control process, a turn each."""

    without_us: tuple[float, ...]
    with_us: tuple[float, ...]

    @property
    def median_us(self) -> float:
        """Without a journal."""
        return statistics.median(self.without_us)

    def differences(self) -> str:
        """With the journal less without it, of each pair, and their median: mostly the machine's noise, in which the
        journal's own time is lost."""
        pairs = [b - a for a, b in zip(self.without_us, self.with_us, strict=True)]
        return f"{statistics.median(pairs):+.0f} ({' '.join(f'{pair:+.0f}' for pair in pairs)})"


class Engines:
    """An engine without a journal and one with it."""

    def __init__(self, without: ServerProcess, with_journal: ServerProcess) -> None:
        self._servers = without, with_journal
        for server in self._servers:
            _turn(server, 16)  # warm-up

    def measure(self, num_streams: int, pairs: int = PAIRS) -> ControlCost:
        """Load both, pair after pair."""
        turns: tuple[list[float], list[float]] = [], []
        for pair in range(pairs):
            for which in (0, 1) if pair % 2 else (1, 0):
                turns[which].append(_turn(self._servers[which], num_streams))
        return ControlCost(tuple(turns[0]), tuple(turns[1]))


@contextmanager
def running_engines() -> Iterator[Engines]:
    """Both engines, with a small random model's tokenizer; they end with the block."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        model.mkdir()
        write_random_model(model)
        options = [str(model), "--set", "process.worker.device=null"]
        journal = ["--set", f"journal.path={folder}/journal"]
        with ServerProcess(*options) as without, ServerProcess(*options, *journal) as with_journal:
            yield Engines(without, with_journal)
        if not list(Path(folder).glob("journal.*")):
            raise RuntimeError("the engine wrote no journal")


def _turn(server: ServerProcess, num_streams: int) -> float:
    """Microseconds of CPU a step."""
    pid = server.pid_of("control")
    before_s, before_steps = cpu_s(pid), read_counter(server.url, "callboard:steps_total")
    load = run_load(
        server.url,
        concurrency=num_streams,
        num_requests=num_streams,
        input_len=INPUT_LEN,
        output_len=OUTPUT_LEN,
        vocab_size=NUM_BYTE_TOKENS,
    )
    asyncio.run(load)
    num_steps = read_counter(server.url, "callboard:steps_total") - before_steps
    return (cpu_s(pid) - before_s) / num_steps * 1e6
