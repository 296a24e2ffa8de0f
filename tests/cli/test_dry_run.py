"""`callboard topology dry-run`: a whole engine without its model, from the outside."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def dry_run(tmp_path: Path, model: Path, more: str = "", *overrides: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "topology.toml"
    file.write_text(f'[model]\nsource = "{model}"\n{more}')
    command = [sys.executable, "-P", "-m", "callboard.cli.main", "topology", "dry-run", str(file)]
    for override in overrides:
        command += ["--set", override]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_actor_starts_and_one_request_goes_through_though_the_address_and_the_device_are_not_to_be_had(
    tmp_path: Path, tiny_llama_dir: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\nsesame\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        processes = "".join(
            f'[[process]]\nname = "p{i}"\nactors = ["{actor}"]\n' for i, actor in enumerate(("frontend", "tokenizer*2"))
        )
        processes += '[[process]]\nname = "rest"\nactors = ["scheduler", "worker"]\ndevice = "cuda:5"\n'
        server = f'[server]\nport = {other.getsockname()[1]}\napi_keys_file = "{keys}"\n'
        done = dry_run(tmp_path, tiny_llama_dir, server + processes, "model.max_model_len=1024")
    assert done.returncode == 0, done.stderr
    *starts, request, end = done.stdout.splitlines()
    assert [re.split(r"\s{2,}", line)[:2] for line in starts] == [
        ["frontend", "p0"],
        ["tokenizer.0", "p1"],
        ["tokenizer.1", "p1"],
        ["scheduler", "rest"],
        ["worker", "rest"],
    ]
    assert re.search(r"starting 0\.\d\d s, loading \d+\.\d\d s, warming \d+\.\d\d s, idle \d+\.\d\d s$", starts[-1])
    # The template of the tiny model writes "user: Is anybody there?\n", a token for each byte.
    assert re.fullmatch(r"chat: 24 prompt tokens, 8 tokens; TTFT \S+ ms, TPOT \S+ ms, E2E \S+ ms", request)
    assert end == "dry run OK"


def test_a_request_that_fails_is_one_screen(tmp_path: Path, tiny_llama_dir: Path) -> None:
    done = dry_run(tmp_path, tiny_llama_dir, "", "model.max_model_len=8")
    assert done.returncode == 1 and "dry run OK" not in done.stdout
    screen = done.stderr[done.stderr.index("callboard could not start") :]
    assert "(phase: request)" in screen and "max_model_len" in screen and "Traceback" not in done.stderr


def test_a_fault_of_the_file_is_one_screen_and_nothing_starts(tmp_path: Path, tiny_llama_dir: Path) -> None:
    done = dry_run(tmp_path, tiny_llama_dir, "[scheduler]\nwatermark = 0.7\n")
    assert done.returncode == 1
    assert done.stderr.startswith("callboard could not start (phase: configuration)") and "watermark" in done.stderr
