"""mypy --strict over the whole package, and a check that it saw every file."""

import os
import re
import subprocess
import sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
tracked = subprocess.run(
    ["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True
).stdout.split()
outside = ("tests/", ".ci/", "examples/", "docs/")
expected = sum(not name.startswith(outside) for name in tracked)
run = subprocess.run(
    [
        sys.executable,
        "-P",
        "-m",
        "mypy",
        "--strict",
        "--explicit-package-bases",
        "-p",
        "callboard",
        "--exclude",
        "/tests/",
    ],
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
if checked < expected:
    sys.exit(f"mypy checked {checked} files, the package has {expected}")
