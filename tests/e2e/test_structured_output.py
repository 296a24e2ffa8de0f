"""Answers with a form from models of noise: valid whatever the scheduler does with them, and whoever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from callboard.bench.random_model import write_random_model
from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.api import Reply
from callboard.tests.e2e.structured_answers import Job, check_all, some_schemas

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "jsonschema_dev.jsonl"
SETTINGS = (
    "model.dtype=float32",
    "model.max_model_len=512",
    "scheduler.max_num_seqs=32",
    "scheduler.max_num_batched_tokens=48",
    "scheduler.long_prefill_token_threshold=24",
    "scheduler.pipeline_depth=2",
    "kv_cache.num_blocks=48",
)
"""Prompts of some 100 tokens come in pieces, and of 32 answers few fit at once: they push each other out."""


def _arguments(model: Path, *settings: str) -> list[str]:
    return [str(model), *(argument for setting in (*SETTINGS, *settings) for argument in ("--set", setting))]


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noise")
    write_random_model(folder, merges_letters=True, max_model_len=512)
    return folder


@pytest.fixture(scope="module")
def server(noise: Path) -> Iterator[ServerProcess]:
    with ServerProcess(*_arguments(noise)) as server:
        yield server


def _jobs(schemas: list[Any], num_seeds: int) -> list[Job]:
    return [
        Job(schema, seed, max_tokens=(12, 100)[seed % 4 > 0], is_streamed=seed % 2 == 0)
        for seed in range(num_seeds)
        for schema in schemas
    ]


@pytest.mark.slow
def test_answers_validate_whatever_the_scheduler_does(server: ServerProcess, send: Callable[..., Reply]) -> None:
    reasons = check_all(send, server.url, _jobs(list(some_schemas()), 6))
    assert reasons["stop"] >= 20 and reasons["length"] >= 1, reasons
    counters = send(f"{server.url}/metrics").text
    (preemptions,) = [line for line in counters.splitlines() if line.startswith("callboard:num_preemptions_total ")]
    assert float(preemptions.split()[1]) > 0, "nobody was pushed out: the settings test nothing"


@pytest.mark.nightly
def test_100_schemas_with_20_seeds(server: ServerProcess, send: Callable[..., Reply]) -> None:
    if not CASES.exists():
        pytest.skip(f"{CASES} is not there")
    records = [json.loads(line) for line in CASES.read_text().rstrip("\n").split("\n")]
    core = [record["schema"] for record in records if record["tier"] == "core" and record["compile"] != "error"]
    refused = 0
    schemas = []
    for schema in core:
        body = {
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 1,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        }
        reply = send(f"{server.url}/v1/chat/completions", body)
        if reply.status == 200:
            schemas.append(schema)
        else:
            assert reply.status == 400 and reply.error["message"]
            refused += 1
        if len(schemas) == 100:
            break
    assert len(schemas) == 100
    reasons = check_all(send, server.url, _jobs(schemas, 20))
    print(f"{reasons} of 2,000 answers, {refused} schemas refused on the way to 100")
    assert reasons["stop"] >= 1000


ANSWER = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 25, "maxItems": 30}


@pytest.mark.slow
def test_the_grammar_actors_death_is_no_end_of_its_answers(noise: Path, tmp_path: Path) -> None:
    topology = tmp_path / "apart.toml"
    processes = (("frontend", "tokenizer", "scheduler"), ("grammar",), ("worker",))
    topology.write_text(
        f'[model]\nsource = "{noise}"\n'
        + "".join(
            f'[[process]]\nname = "{actors[-1]}"\nactors = {json.dumps(actors)}\n'
            "restart = { max = 10, within_s = 1.0, backoff_s = 0.0 }\n"
            for actors in processes
        )
    )
    settings = [argument for setting in SETTINGS for argument in ("--set", setting)]
    with ServerProcess("--topology", str(topology), *settings, "--set", "server.port=0") as server:
        ends = asyncio.run(_kill_in_the_middle(server))
        assert len(ends) == 16
        for text, reason in ends:
            assert reason == "stop", (text, reason, server.log())
            jsonschema.validate(json.loads(text), ANSWER)
        assert server.log().count("process.died process=grammar") == 2


async def _kill_in_the_middle(server: ServerProcess) -> list[tuple[str, str]]:
    """Twice: when each stream has begun, and when the next life has followed them for a while."""
    num_pieces: list[int] = [0] * 16
    progress = asyncio.Condition()

    async def follow(session: aiohttp.ClientSession, index: int) -> tuple[str, str]:
        body = {
            "messages": [{"role": "user", "content": f"{index} numbers"}],
            "temperature": 1.5,
            "seed": index,
            "max_tokens": 300,
            "stream": True,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}},
        }
        text, reason = "", ""
        async with session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                (choice,) = json.loads(line[6:])["choices"] or [None]
                if choice is not None:
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
                async with progress:
                    num_pieces[index] += 1
                    progress.notify_all()
        return text, reason

    async with aiohttp.ClientSession() as session:
        answers = asyncio.gather(*(follow(session, index) for index in range(16)))
        for num_wanted in (3, 15):
            async with progress:
                await progress.wait_for(lambda wanted=num_wanted: min(num_pieces) >= wanted)  # type: ignore[misc]
            os.kill(server.pid_of("grammar"), signal.SIGKILL)
        return await answers
