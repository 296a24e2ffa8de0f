"""`callboard topology check` and `show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..actors.launch import prepare_launch
from ..topology import load_topology, render_topology
from .screens import ProgressBars


def check(file: Path, overrides: Sequence[str]) -> int:
    """All checks of a start, without a start. Raises ConfigError with every problem found."""
    topology = load_topology(file, overrides)
    with ProgressBars() as bars:
        launch = prepare_launch(topology, progress=bars)
    print(f"{file}: ok, {launch.ledger.num_blocks:,} KV blocks of {topology.kv_cache.block_size} tokens")
    return 0


def show(file: Path, overrides: Sequence[str]) -> int:
    """The drawing, with the ledger of this machine."""
    topology = load_topology(file, overrides)
    with ProgressBars() as bars:
        launch = prepare_launch(topology, progress=bars)
    print(render_topology(launch.topology, launch.shape, launch.ledger))
    return 0
