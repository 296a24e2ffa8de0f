"""`callboard topology check` and `show`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..actors.launch import prepare_launch
from ..topology import as_ascii, load_topology, read_topology, render_ledger, render_topology
from .screens import plain
from .shown_progress import shown_progress
from .topology_check import examine


def check(file: Path, overrides: Sequence[str]) -> int:
    """All checks of a start, without one: each problem is a line on standard error; 1 if there are any but warnings.

    Raises ConfigError for a file that is no TOML.
    """
    reading = read_topology(file, overrides)
    with shown_progress() as bars:
        launch, problems = examine(reading, str(file.parent), bars)
    for problem in sorted(problems, key=lambda problem: reading.places.line_of(problem.path) or 0):
        kind = "warning" if problem.is_warning else "error"
        print(plain(f"{kind}: {reading.places.sentence(problem)}"), file=sys.stderr)
    if launch is None:
        num_errors = sum(not problem.is_warning for problem in problems)
        print(f"{file}: {num_errors} problem{'s' if num_errors > 1 else ''}", file=sys.stderr)
        return 1
    _print(f"{file}: ok\n\n{render_ledger(launch.topology, launch.ledger)}")
    return 0


def show(file: Path, overrides: Sequence[str]) -> int:
    """The drawing, with the ledger of this machine."""
    topology = load_topology(file, overrides)
    with shown_progress() as bars:
        launch = prepare_launch(topology, progress=bars)
    _print(render_topology(launch.topology, launch.shape, launch.ledger).rstrip("\n"))
    return 0


def _print(drawing: str) -> None:
    try:
        drawing.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        drawing = as_ascii(drawing)
    print(drawing)
