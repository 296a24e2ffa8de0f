"""schemathesis over the server's own /openapi.json: whatever it makes up, no 5xx, and answers are as described.

Checked of each answer: status, media type, headers and body against the document; that bodies which the document
forbids are refused; that no endpoint that needs a key goes without; that other methods are a 405.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.bench.random_model import write_random_model
from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.null_engine import null_server

pytestmark = pytest.mark.slow

KEY = "a-key-for-schemathesis"
SCHEMATHESIS = (sys.executable, "-P", "-m", "schemathesis.cli", "run")
HOOKS = Path(__file__).with_name("openapi_hooks.py")
EXCLUDED = "positive_data_acceptance"
"""Some rules join fields, or need the model: top_logprobs needs logprobs, a prompt must leave room for max_tokens."""


def short_server(folder: Path, *settings: str) -> ServerProcess:
    """Of a short model, on the null device unless told otherwise: a request without max_tokens ends soon."""
    write_random_model(folder, max_model_len=96, merges_letters=True)
    keys = folder / "keys"
    keys.write_text(f"{KEY}\n")
    keys.chmod(0o600)
    return null_server(folder, f"server.api_keys_file={keys}", *settings)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with short_server(tmp_path_factory.mktemp("short_model")) as server:
        yield server


def run_schemathesis(server: ServerProcess, folder: Path, *options: str) -> None:
    """Raises AssertionError with its report, which has a command for each failure, and the server's log."""
    command = [
        *SCHEMATHESIS, f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}",
        "--exclude-checks", EXCLUDED, "--generation-database", "none", "--no-color", "--continue-on-failure", *options,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-4000:]}"
    assert "ERROR" not in server.log() and "Traceback" not in server.log(), server.log()[-4000:]


def test_bodies_made_from_the_document(server: ServerProcess, tmp_path: Path) -> None:
    run_schemathesis(server, tmp_path, "--phases", "fuzzing", "--max-examples", "4", "--seed", "1", "--no-shrink")


@pytest.mark.nightly
def test_bodies_that_a_model_answers(tmp_path: Path) -> None:
    """With a real worker, which has to make a step of whatever fields were accepted."""
    with short_server(tmp_path, "process.worker.device=cpu") as server:
        run_schemathesis(server, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "100")


@pytest.mark.nightly
def test_every_constraint_and_many_bodies(server: ServerProcess, tmp_path: Path) -> None:
    """Each limit from both sides, each field of a wrong type, and then thousands of bodies, other ones each time."""
    run_schemathesis(server, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "100")
