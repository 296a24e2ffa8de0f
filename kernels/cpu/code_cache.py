"""Where compiled code lies on the disk: in a folder named by the contents of all files of this package, by the compiler
and by the CPU.

numba looks for changes in a function's own file. What is compiled into it from others (an `exp`, a tile) would stay as
it was before an upgrade.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

_HERE = Path(__file__).parent
_OF_A_CPU = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features")
_SUFFIX = ".o"
_DIGEST_BYTES = 32
"""Behind the content of a file: after a loss of power it may not be what was written."""


def fingerprint(package: Path) -> str:
    """Of its Python files, names and contents."""
    digest = sha256()
    for path in sorted(package.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@lru_cache
def cache_folder() -> Path:
    """NUMBA_CACHE_DIR if it is set, or beside the package if that may be written, or else the user's own."""
    name = fingerprint(_HERE)
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen) / name
    beside = _HERE / "__pycache__" / name
    with suppress(OSError):
        beside.mkdir(parents=True, exist_ok=True)
    if os.access(beside, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callboard" / name


def has_compiled_code() -> bool:
    """Whether something of this version is kept already."""
    return any(_object_folder().glob(f"*{_SUFFIX}"))


def read_object(name: str) -> bytes | None:
    """An object file that was kept, if it is there and whole."""
    try:
        kept = (_object_folder() / (name + _SUFFIX)).read_bytes()
    except OSError:
        return None
    content, digest = kept[:-_DIGEST_BYTES], kept[-_DIGEST_BYTES:]
    return content if sha256(content).digest() == digest else None


def keep_object(name: str, content: bytes) -> None:
    """For the processes to come, if there is a place to write to."""
    folder = _object_folder()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(content + sha256(content).digest())
        os.replace(file.name, folder / (name + _SUFFIX))


@lru_cache
def _object_folder() -> Path:
    """Folders may be shared by machines."""
    digest = sha256(_compiler_version())
    for line in Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines():
        if line.partition("\t")[0].partition(":")[0].strip() in _OF_A_CPU:
            digest.update(line.encode())
    return cache_folder() / f"code-{digest.hexdigest()[:16]}"


def _compiler_version() -> bytes:
    """Of numba, which is not imported for this."""
    found = find_spec("numba")
    assert found is not None and found.origin is not None, "numba is installed"
    return Path(found.origin).with_name("_version.py").read_bytes()
