"""Interpreters of other virtual environments: whether they have an engine, and the command that drives it there."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .peer import NotInstalled

_WORKER = Path(__file__).with_name("offline_worker.py")


def require_module(python: Path | None, option: str, module: str) -> Path:
    """The interpreter, if it has the module. Raises NotInstalled."""
    if python is None:
        raise NotInstalled(f"no {option} is given")
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        done = subprocess.run([str(python), "-P", "-c", probe], capture_output=True)
    except OSError as error:
        raise NotInstalled(f"{python} cannot be run: {error}") from error
    if done.returncode:
        raise NotInstalled(f"{python} has no {module}")
    return python


def require_file(path: Path | None, option: str) -> Path:
    """The path, if something is there. Raises NotInstalled."""
    if path is None:
        raise NotInstalled(f"no {option} is given")
    if not path.exists():
        raise NotInstalled(f"{path} is not there")
    return path


def worker_command(python: Path, engine_file: str, *arguments: str) -> list[str]:
    """`engine_file` beside this one, for `offline_worker`."""
    return [str(python), "-P", str(_WORKER), str(_WORKER.with_name(engine_file)), *arguments]
