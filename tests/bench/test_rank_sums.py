"""The bench of sums over ranks, with ranks that are processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_both_ways_are_timed_for_each_size(tmp_path):
    target = tmp_path / "sums.json"
    command = [sys.executable, "-P", "-m", "callboard.bench.rank_sums", "--ranks", "2", "--sizes", "1000,40000"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    shown = subprocess.run(
        [*command, "--rounds", "3", "--json", str(target)], env=environment, check=True, capture_output=True, text=True
    ).stdout
    results = json.loads(target.read_text())
    assert [(result["ranks"], result["bytes"]) for result in results] == [(2, 1000), (2, 40000)]
    assert all(result["gloo, us"] > 0 and result["shared memory, us"] > 0 for result in results)
    assert shown.count("| 2 |") == 2
