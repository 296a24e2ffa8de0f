"""What the end-to-end tests ask of a running server."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from callboard.bench.overlap import read_counter
from callboard.bench.random_model import write_random_model
from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.api import LETTERS_SETTINGS, SMOL_LENGTH, Api, Reply
from callboard.tests.e2e.null_engine import Oracle

if TYPE_CHECKING:
    from callboard.tests.e2e.family_servers import FamilyServer

GAUGES = ("callboard:num_requests_running", "callboard:num_requests_waiting", "callboard:kv_cache_usage_perc")


Send = Callable[..., Reply]


def _send(
    url: str, body: object = None, *, method: str | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """POST `body` (bytes go as they are, anything else as JSON), or GET without one."""
    payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url, payload, {"Content-Type": "application/json", **(headers or {})}, method=method
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return Reply(answer.status, dict(answer.headers), answer.read().decode())
    except urllib.error.HTTPError as answer:
        with answer:
            return Reply(answer.code, dict(answer.headers), answer.read().decode())


@pytest.fixture(scope="session")
def send() -> Send:
    """`send(url, body)` -> Reply."""
    return _send


@pytest.fixture(scope="session")
def wait_idle() -> Callable[[str], None]:
    """Returns when nothing runs or waits and no KV block is in use: the state of an engine that has nothing to do."""

    async def wait(url: str) -> None:
        while any([await asyncio.to_thread(read_counter, url, gauge) for gauge in GAUGES]):
            await asyncio.sleep(0.02)  # between two looks at the gauges

    return lambda url: asyncio.run(wait(url))


@pytest.fixture(scope="session")
def null_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model for the null device: any tokenizer and any length will do."""
    folder = tmp_path_factory.mktemp("null_model")
    write_random_model(folder, max_model_len=32_768, merges_letters=True)
    return folder


@pytest.fixture(scope="session")
def oracle(null_model: Path) -> Oracle:
    """What an engine with that model must say."""
    return Oracle(null_model)


@pytest.fixture(scope="session")
def smol_server(smollm2_gguf: Path) -> Iterator[ServerProcess]:
    """The real model in float32, served as `smol`: for modules that ask and leave it as it was."""
    settings = (
        "model.served_name=smol",
        "kv_cache.num_blocks=2048",
    )
    words = [word for setting in settings for word in ("--set", setting)]
    with ServerProcess(str(smollm2_gguf), "--dtype", "float32", *words) as server:
        yield server


@pytest.fixture(scope="session")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FamilyServer]:
    """A tiny random Gemma 3, its weights also in transformers."""
    from callboard.tests.e2e.family_servers import CHUNK_16, serve_family  # transformers takes seconds to import

    with serve_family("gemma3", tmp_path_factory.mktemp("gemma3"), *CHUNK_16) as family:
        yield family


@pytest.fixture(scope="session")
def smol(smollm2_gguf: Path) -> Iterator[Api]:
    """SmolLM2 in float32: for what depends on a real model or its tokenizer."""
    yield from _served(str(smollm2_gguf), "model.served_name=smol", f"model.max_model_len={SMOL_LENGTH}")


@pytest.fixture(scope="session")
def letters(null_model: Path) -> Iterator[Api]:
    """A random Llama whose greedy texts are letters, with few KV blocks and small steps: cheap, and else all real."""
    yield from _served(str(null_model), *LETTERS_SETTINGS, "process.worker.threads=1")


def _served(model: str, *settings: str) -> Iterator[Api]:
    words = [word for setting in settings for word in ("--set", setting)]
    with ServerProcess(model, "--dtype", "float32", *words) as server:
        yield Api(server, _send)
        assert "Traceback" not in server.log(), server.log()[-4_000:]


@pytest.fixture
def letters_idle(letters: Api, wait_idle: Callable[[str], None]) -> Iterator[None]:
    """After the test nothing is left in the server, and it is healthy."""
    yield
    wait_idle(letters.url)
    assert letters.get("/health").status == letters.get("/ready").status == 200


@pytest.fixture
def smol_idle(smol: Api, wait_idle: Callable[[str], None]) -> Iterator[None]:
    """As `letters_idle`."""
    yield
    wait_idle(smol.url)
    assert smol.get("/health").status == smol.get("/ready").status == 200
