"""mypy --strict over the package, its examples and its docs' scripts, and a check that it saw every file, once."""

import os
import re
import subprocess
import sys
from pathlib import Path

OUTSIDE = ("tests/", ".ci/", ".types/")
"""Not looked at: the tests, and folders whose names no package can have."""

root = Path(__file__).resolve().parent.parent
tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
files = [Path(name) for name in tracked if not name.startswith(OUTSIDE)]
modules = [path for path in files if path.suffix == ".py"]
packages = {path.parent for path in modules if path.name == "__init__.py"}
namespaces = {path.parent for path in files} - packages
expected = len(modules) + len(namespaces)  # mypy counts a folder without __init__.py as a file
options = ["--strict", "--explicit-package-bases", "--exclude", "/callboard/(tests|build)(/|$)", "-p", "callboard"]
run = subprocess.run(
    [sys.executable, "-P", "-m", "mypy", *options],
    cwd=root,
    env={**os.environ, "MYPYPATH": ".types"},
    capture_output=True,
    text=True,
)
print(run.stdout, run.stderr, sep="", end="")
if run.returncode:
    sys.exit(run.returncode)
match = re.search(r"no issues found in (\d+) source files", run.stdout)
checked = int(match.group(1)) if match else 0
if checked != expected:
    sys.exit(f"mypy checked {checked} files, there are {expected} (files that git does not track count too)")
