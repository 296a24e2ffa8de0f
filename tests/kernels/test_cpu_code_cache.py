"""Compiled code is not used any more once any file of the package has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

from callboard.kernels.cpu import code_cache, compiled, rows
from callboard.kernels.cpu.code_cache import cache_folder, fingerprint
from callboard.kernels.cpu.numba_cache import own_cache


@pytest.fixture
def package(tmp_path):
    """A copy of the package's files."""
    for path in Path(code_cache.__file__).parent.glob("*.py"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_every_file_counts(package):
    seen = {fingerprint(package)}
    assert seen == {fingerprint(Path(code_cache.__file__).parent)}
    for path in sorted(package.glob("*.py")):
        path.write_text(path.read_text() + "\n")
        seen.add(fingerprint(package))
    (package / "new.py").touch()
    seen.add(fingerprint(package))
    (package / "new.py").rename(package / "newer.py")
    seen.add(fingerprint(package))
    assert len(seen) == 3 + len(list(Path(code_cache.__file__).parent.glob("*.py")))


def test_functions_are_kept_in_the_folder():
    path = Path(rows.round_row.stats.cache_path)
    assert cache_folder() == path.parent


def test_the_settings_of_others_stay_as_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))

    @compiled.compiled
    def twice(x):
        return 2 * x

    assert twice(21) == 42
    path = Path(twice.stats.cache_path)
    assert (tmp_path, cache_folder().name) == (path.parent.parent, path.parent.name)
    assert str(tmp_path) == config.CACHE_DIR
    with pytest.raises(RuntimeError), own_cache():
        raise RuntimeError
    assert str(tmp_path) == config.CACHE_DIR


def test_a_package_that_is_not_to_be_written_uses_the_users_own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert cache_folder.__wrapped__().parent == tmp_path / "callboard"


@pytest.mark.nightly
def test_code_that_was_just_compiled_computes_the_bits_of_code_from_the_disk(tmp_path):
    """A worker that is started again must go on as the one before would have."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "callboard.tests.kernels.cpu_digest"]
    digests = [subprocess.run(command, env=environment, check=True, capture_output=True).stdout for _ in range(2)]
    assert digests[0] == digests[1] != b""
