"""Files that are no topology, files that a topology names and that are wrong, and several faults at once."""

from __future__ import annotations

import os
import re
import socket

import pytest

from callboard.cli.main import main
from callboard.tests.topology.planted_faults import lines_of, write

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
        ("max_num_seqs = 8", "max_num_seqs = '8'\npolicy = 'far'"),
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
