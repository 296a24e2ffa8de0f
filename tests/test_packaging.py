"""What is shipped: the wheel's contents, an import from it alone, and a clone in a folder of another name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_SHIPPED = ("tests", ".ci", ".types", "examples", "docs")


def tracked_files() -> list[str]:
    """Paths of the files that git tracks; in a copy without git, of all files but those that tools leave behind."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [name for name in listing.split("\0") if name and os.path.lexists(ROOT / name)]
    hidden = {path.name for path in ROOT.glob(".*")} - {".ci", ".types", ".gitignore", ".gitattributes"}
    skipped = {*hidden, "build", "dist", "__pycache__"}
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_symlink() or path.is_file()]
    return [str(path) for path in found if not skipped & {*path.parts} and ".egg-info/" not in str(path)]


def package_files() -> set[str]:
    """The package's modules as paths in the wheel."""
    return {
        f"callboard/{name}" for name in tracked_files() if name.endswith(".py") and not name.startswith(NOT_SHIPPED)
    }


def copy_of_the_tree(target: Path) -> Path:
    """The tracked files, links as links, as `git clone` makes them."""
    for name in tracked_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def run(command: list[str], folder: Path, python_path: Path | None = None) -> str:
    """Standard output of a command that must succeed, run away from this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder is left in the checkout; without network and build isolation."""
    source = copy_of_the_tree(tmp_path_factory.mktemp("source"))
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-P", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run([*pip, "--wheel-dir", str(target), str(source)], target)
    (built,) = target.glob("*.whl")
    return built


def test_every_package_folder_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {Path(name).parent for name in tracked_files() if name.endswith("__init__.py")}
    expected = sorted(".".join(["callboard", *folder.parts]) for folder in folders)
    assert sorted(listed) == expected


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - metadata == package_files()
    assert any(name.endswith("/entry_points.txt") for name in metadata)
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)


@pytest.mark.slow
def test_the_wheel_alone_can_be_imported(wheel: Path, tmp_path: Path) -> None:
    """From a bare folder on the path: nothing of the checkout is needed to import every module."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import importlib, pkgutil, callboard\n"
        "for module in pkgutil.walk_packages(callboard.__path__, 'callboard.'):\n"
        "    importlib.import_module(module.name)\n"
        "    print(module.name)\n"
        "print(callboard.__file__)\n"
    )
    *modules, origin = run([sys.executable, "-P", "-c", script], tmp_path, tmp_path / "site").splitlines()
    assert Path(origin) == tmp_path / "site" / "callboard" / "__init__.py"
    as_paths = {f"{name.replace('.', '/')}{tail}" for name in modules for tail in (".py", "/__init__.py")}
    assert package_files() - as_paths == {"callboard/__init__.py"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The tree in a folder of another name, which `import callboard` must not depend on."""
    return copy_of_the_tree(tmp_path / "other-name")


@pytest.mark.slow
def test_a_clone_of_another_name_can_be_installed_for_development(clone: Path, tmp_path: Path) -> None:
    """What `make setup` does there: `pip install -e .`; into a folder of its own, not into this environment."""
    site = tmp_path / "site"
    pip = [sys.executable, "-P", "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run([*pip, "--target", str(site), "--editable", str(clone)], tmp_path)
    # `.pth` files work in site folders only, and an editable install is one
    script = f"import site; site.addsitedir({str(site)!r}); import callboard.mailbox.messages as m; print(m.__file__)"
    assert run([sys.executable, "-P", "-c", script], tmp_path) == f"{clone}/mailbox/messages/__init__.py\n"
    command = f"import site; site.addsitedir({str(site)!r}); from callboard.cli.main import main; main()"
    version = tomllib.loads((clone / "pyproject.toml").read_text())["project"]["version"]
    assert run([sys.executable, "-P", "-c", command, "version"], tmp_path) == f"{version}\n"


@pytest.mark.slow
def test_a_clone_of_another_name_passes_its_tests(clone: Path) -> None:
    """Through the clone's own `.types` link, as long as nothing is installed."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "tests/topology/test_load.py"]
    assert " passed" in run(command, clone, clone / ".types")
    where = run([sys.executable, "-P", "-c", "import callboard; print(callboard.__file__)"], clone, clone / ".types")
    assert Path(where.strip()).resolve() == clone / "__init__.py"
