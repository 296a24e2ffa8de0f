"""A good file with one fault planted: the message names the place, the value, and what is allowed."""

from __future__ import annotations

import pytest

from callboard.errors import ConfigError
from callboard.topology import check_topology, ensure_valid, load_topology

GOOD = """
[model]
source = "org/name"
max_model_len = 2048

[scheduler]
max_num_seqs = 8
max_num_batched_tokens = 256

[kv_cache]
num_blocks = 400

[server]
port = 8000

[[process]]
name = "control"
actors = ["frontend*2", "tokenizer", "scheduler"]

[[process]]
name = "worker"
actors = ["worker"]
threads = 2
restart = { max = 1, within_s = 5 }
"""

# (what is replaced, by what, what the message must say)
IN_THE_FILE = [
    (
        "max_num_seqs = 8",
        "max_num_sequences = 8",
        ["[scheduler]", '"max_num_sequences"', 'did you mean "max_num_seqs"'],
    ),
    ("[kv_cache]", "[kvcache]", ["top level", 'unknown section "kvcache"', 'did you mean "kv_cache"']),
    ("threads = 2", "thread = 2", ['[[process]] "worker"', '"thread"', 'did you mean "threads"']),
    ("within_s = 5", "window = 5", ['[[process]] "worker", restart', '"window"', "within_s"]),
    ('source = "org/name"', "", ["[model]", '"source" is missing', "a string"]),
    ('[model]\nsource = "org/name"\nmax_model_len = 2048', "", ["top level", "[model] is missing"]),
    ('name = "control"\n', "", ["[[process]] number 1", '"name" is missing']),
    ("max_num_seqs = 8", 'max_num_seqs = "8"', ["[scheduler]", 'max_num_seqs = "8"', "an integer of at least 1"]),
    ("max_num_seqs = 8", "max_num_seqs = 0", ["max_num_seqs = 0", "an integer of at least 1"]),
    ("max_num_seqs = 8", "max_num_seqs = 8.5", ["max_num_seqs = 8.5", "an integer of at least 1"]),
    ("max_num_seqs = 8", "max_num_seqs = true", ["max_num_seqs = true", "an integer of at least 1"]),
    ("max_num_seqs = 8", "pipeline_depth = 4", ["pipeline_depth = 4", "an integer of at least 1 and at most 3"]),
    ("max_num_seqs = 8", "watermark = 1.0", ["watermark = 1.0", "a number of at least 0 and below 1"]),
    ("max_num_seqs = 8", "watermark = nan", ["watermark = nan", "a number"]),
    ("within_s = 5", "within_s = inf", ["within_s = inf", "a number above 0"]),
    ("port = 8000", "port = 70000", ["[server]", "port = 70000", "at most 65,535"]),
    ("max_model_len = 2048", 'dtype = "float16"', ["[model]", 'dtype = "float16"', '"auto", "float32", "bfloat16"']),
    ("num_blocks = 400", "prefix_caching = 1", ["[kv_cache]", "prefix_caching = 1", "true or false"]),
    ("num_blocks = 400", "memory_share = 1.5", ["memory_share = 1.5", "a number above 0 and below 1"]),
    ('actors = ["worker"]', 'actors = "worker"', ['[[process]] "worker"', 'actors = "worker"', "an array of strings"]),
    ("restart = { max = 1, within_s = 5 }", "restart = 3", ["restart = 3", "a table"]),
    ("[scheduler]\n", "[scheduler]\npolicy = 'lifo'\n", ['policy = "lifo"', 'one of "fcfs", "priority", "fair"']),
]

IN_THE_WHOLE = [
    ('"tokenizer"', '"tokeniser"', ['[[process]] "control"', 'actor "tokeniser"', 'did you mean "tokenizer"']),
    ('"frontend*2"', '"frontend*0"', ['actor "frontend*0"', "a count from 1"]),
    ('"frontend*2"', '"frontend*x"', ['actor "frontend*x"', "a count from 1"]),
    ('"frontend*2"', '"frontend*-1"', ['actor "frontend*-1"', "a count from 1"]),
    ('"frontend*2", ', "", ["no frontend", "at least one frontend"]),
    ('"tokenizer"', '"tokenizer*33"', ["2 frontends and 33 tokenizers", "at most 64 pairs"]),
    (', "tokenizer"', "", ["no tokenizer", "at least one tokenizer"]),
    (', "scheduler"', "", ["no scheduler", "exactly one scheduler"]),
    ('"scheduler"', '"scheduler*2"', ["2 schedulers", "exactly one scheduler"]),
    ('actors = ["worker"]', 'actors = ["worker*2"]', ["2 workers", "one worker, more are not supported yet"]),
    ('"scheduler"', '"scheduler", "worker"', ["2 workers", "one worker, more are not supported yet"]),
    ('"scheduler"', '"scheduler", "grammar"', ['actor "grammar"', "grammar is not supported yet"]),
    ('"scheduler"', '"scheduler", "proposer"', ['actor "proposer"', "proposer is not supported yet"]),
    ('name = "worker"', 'name = "control"', ['[[process]] "control"', "unique names"]),
    ('name = "worker"', 'name = "the worker"', ['[[process]] "the worker"', "a letter, then"]),
    ('name = "worker"', 'name = "../worker"', ["a letter, then"]),
    ('name = "worker"', 'name = "supervisor"', ['not "supervisor"']),
    ("[server]", "[journal]\npath = 'j'\n[server]", ["[journal]", "not supported yet"]),
    ("[server]", "[structured_output]\n[server]", ["[structured_output]", "not supported yet"]),
    ("[server]", "[speculative]\nmethod = 'ngram'\n[server]", ["[speculative]", "not supported yet"]),
    ("port = 8000", "host = ''", ["[server]", 'host = ""', "a host name or an address"]),
    ("[scheduler]\n", "[scheduler]\npolicy = 'fair'\n", ["[scheduler]", 'policy = "fair"', 'only "fcfs"']),
    ("[scheduler]\n", "[scheduler]\nwatermark = 0.6\n", ["[scheduler]", "watermark = 0.6", "below 0.5"]),
    ("max_model_len = 2048", "load = 'dummy'", ["[model]", 'load = "dummy"', "not supported yet"]),
    ('source = "org/name"', 'source = ""', ["[model]", 'source = ""', "not empty"]),
    ("threads = 2", "tensor_parallel = 2", ['[[process]] "worker"', "tensor_parallel = 2", "only 1"]),
    ("threads = 2", "pipeline_parallel = 3", ["pipeline_parallel = 3", "only 1, more is not supported yet"]),
    ("threads = 2", "device = 'cuda:0'", ['device = "cuda:0"', 'only "cpu" and "null", others are not supported yet']),
    ("threads = 2", "device = 'gpu'", ['device = "gpu"', '"cuda:N"']),
    ('name = "control"', 'name = "control"\nthreads = 3', ['"control"', "threads = 3", "worker's process"]),
    (
        "max_num_batched_tokens = 256",
        "max_num_batched_tokens = 7",
        ["max_num_batched_tokens = 7", "at least max_num_seqs, 8"],
    ),
    (
        "num_blocks = 400",
        "num_blocks = 400\nmemory_share = 0.5",
        ["[kv_cache]", "num_blocks = 400, memory_share = 0.5", "one of"],
    ),
    (
        "num_blocks = 400",
        "num_blocks = 127",
        ["[kv_cache]", "num_blocks = 127", "at least 128", "max_model_len = 2,048"],
    ),
    (
        "max_num_batched_tokens = 256",
        "max_num_batched_tokens = 999999999",
        ["= 999,999,999", "plans of at most 256.0 MiB"],
    ),
    ("num_blocks = 400", "block_size = 12", ["[kv_cache]", "block_size = 12", "multiples of 8 from 8 to 256"]),
    ("num_blocks = 400", "block_size = 264", ["block_size = 264", "multiples of 8 from 8 to 256"]),
]

WITH_THE_MODEL = [
    # The model's own length is 8,192; a token has 2 * 30 * 3 * 64 * 2 = 23,040 bytes in bfloat16, 46,080 in float32.
    ("max_model_len = 2048", "max_model_len = 8193", ["[model]", "max_model_len = 8,193", "at most 8,192"]),
    ("max_model_len = 2048", "", ["num_blocks = 400", "at least 512", "max_model_len = 8,192"]),
    ("num_blocks = 400", "memory_bytes = 47185919", ["memory_bytes = 47,185,919", "at least 47,185,920"]),
]


def planted(tmp_path, old, new):
    assert GOOD.count(old) == 1, f"the fault {old!r} -> {new!r} is not planted exactly once"
    path = tmp_path / "topology.toml"
    path.write_text(GOOD.replace(old, new))
    return path


def test_the_good_file_is_good(tmp_path, smollm2):
    path = tmp_path / "topology.toml"
    path.write_text(GOOD)
    topology = load_topology(path)
    assert check_topology(topology) == []
    assert check_topology(topology, smollm2) == []


@pytest.mark.parametrize(("old", "new", "says"), IN_THE_FILE)
def test_a_fault_that_decoding_finds(tmp_path, old, new, says):
    path = planted(tmp_path, old, new)
    with pytest.raises(ConfigError) as caught:
        load_topology(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message, "one fault, one line"
    for part in says:
        assert part in message


@pytest.mark.parametrize(("old", "new", "says"), IN_THE_WHOLE)
def test_a_fault_that_the_checks_find(tmp_path, old, new, says):
    topology = load_topology(planted(tmp_path, old, new))
    problems = check_topology(topology)
    assert len(problems) == 1, problems
    assert problems[0].place and problems[0].got and problems[0].allowed and problems[0].advice
    with pytest.raises(ConfigError) as caught:
        ensure_valid(topology)
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize(("old", "new", "says"), WITH_THE_MODEL)
def test_a_fault_that_the_model_shows(tmp_path, smollm2, old, new, says):
    topology = load_topology(planted(tmp_path, old, new))
    assert not any(says[-1] in problem.sentence() for problem in check_topology(topology))
    with pytest.raises(ConfigError) as caught:
        ensure_valid(topology, smollm2)
    for part in says:
        assert part in str(caught.value)


def test_all_faults_are_told_at_once(tmp_path):
    path = tmp_path / "topology.toml"
    path.write_text(GOOD.replace("port = 8000", "port = -1\nprot = 1").replace("max_num_seqs = 8", "max_num_seqs = 0"))
    with pytest.raises(ConfigError) as caught:
        load_topology(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == "3 faults:"
    assert len(lines) == 4
    path.write_text(GOOD.replace('"tokenizer"', '"grammar"').replace("num_blocks = 400", "num_blocks = 1"))
    with pytest.raises(ConfigError) as caught:
        ensure_valid(load_topology(path))
    lines = str(caught.value).splitlines()
    assert lines[0] == "3 problems in the topology:"
    assert len(lines) == 4
