"""`callboard serve`: prepare, start the supervisor, print the ready line, wait."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

from ..actors.forks import ForkStart
from ..actors.launch import Launch, prepare_launch
from ..actors.supervisor import Supervisor, watch_signals
from ..errors import ConfigError
from ..topology import AUTO, Topology, find_device, load_topology, topology_from
from .child import child_start, start_early
from .shown_progress import shown_progress


def serve_topology(model: str | None, file: Path | None, overrides: Sequence[str], device: str | None = None) -> int:
    """Serve until stopped; returns the exit status. Raises StartFailed."""
    gc.disable()  # what a start makes stays
    topology = read_topology(file, model, overrides, device)
    children = child_start(topology)
    try:
        start_early(children, topology, has_worker=False)
        with shown_progress() as bars:
            launch = prepare_launch(topology, progress=bars)
        start_early(children, topology, has_worker=True)  # not while a thread draws bars
        return asyncio.run(_serve(launch, children))
    finally:
        children.close()


def read_topology(
    file: Path | None, model: str | None, overrides: Sequence[str], device: str | None = None
) -> Topology:
    """From a file, MODEL replacing its source, or the default topology for MODEL on `device`; None: what this machine
    has. Raises ConfigError."""
    if file is not None:
        if device is not None:
            raise ConfigError("--device is for a start without a file", advice="set the worker's device in the file")
        return load_topology(file, overrides, source=model)
    if model is None:
        raise ConfigError("no model was named", advice="give MODEL, or --topology FILE")
    return topology_from(model, overrides, device=find_device(device or AUTO))


async def _serve(launch: Launch, children: ForkStart) -> int:
    with shown_progress() as bars:
        supervisor = Supervisor(launch, children, on_loading=bars.loading)
        watch_signals(supervisor)
        await supervisor.start()
    gc.freeze()
    gc.enable()
    print(f"ready {supervisor.url}", flush=True)
    return await supervisor.wait()
