"""A worker of several ranks, each a process, behind HTTP: the answers of one rank, whatever is asked, whoever dies."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from callboard.bench.overlap import read_counter
from callboard.bench.random_model import write_random_model
from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.api import Api, Choice, Reply, at_once
from callboard.tests.e2e.test_reference_outputs import REFERENCES, SMALL_POOL, check, run_with_a_kill, serve, settings

pytestmark = pytest.mark.slow

MODEL = ("model.served_name=ranks", "model.max_model_len=512", "scheduler.max_num_batched_tokens=64")
SMALL = ("kv_cache.num_blocks=40", "speculative.method=ngram", "speculative.max_tokens=3")
"""Two requests of full length fit: many at once are preempted, again and again."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
SHARED = "the same words for everybody, which the prefix cache keeps: "
NUM_STREAMS = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 heads in 3 groups: of 2 ranks the second computes a group of zeros."""
    folder = tmp_path_factory.mktemp("ranks_model")
    write_random_model(
        folder, hidden_size=96, num_heads=6, num_kv_heads=3, num_layers=3, merges_letters=True, max_model_len=1024
    )
    return folder


@pytest.fixture(scope="module")
def alone(model: Path, send: Callable[..., Reply]) -> Iterator[Api]:
    with ServerProcess(str(model), "--dtype", "float32", *settings(*MODEL)) as server:
        yield Api(server, send)


STAGES = ("process.worker.pipeline_parallel=2", "kv_cache.num_blocks=40")


@pytest.fixture(scope="module")
def ranks(model: Path, send: Callable[..., Reply]) -> Iterator[Api]:
    words = ["--dtype", "float32", "--tensor-parallel", "2", *settings(*MODEL, *SMALL)]
    with ServerProcess(str(model), *words) as server:
        yield Api(server, send)
        server.terminate()
        assert server.wait() == 0, server.log()


def mixed() -> list[tuple[str, str, dict[str, Any]]]:
    """(endpoint, prompt, fields): what a request may ask for, side by side."""
    return [
        ("completions", SHARED + "1", {"max_tokens": 40}),
        ("completions", SHARED + "2", {"max_tokens": 40, "temperature": 1.0, "seed": 5, "top_p": 0.9}),
        ("completions", SHARED + "3", {"max_tokens": 30, "temperature": 0.9, "seed": 6, "n": 3, "logprobs": 3}),
        ("completions", SHARED + "4", {"max_tokens": 10, "echo": True, "logprobs": 2}),
        ("completions", "ab ab ab ab ab ab ab ab", {"max_tokens": 60}),
        ("completions", SHARED * 5, {"max_tokens": 30, "presence_penalty": 1.0, "frequency_penalty": 0.5}),
        ("chat", SHARED + "5", {"max_tokens": 40, "logprobs": True, "top_logprobs": 4, "stream": True}),
        ("chat", "say", {"max_tokens": 40, "seed": 7, "temperature": 1.0, "response_format": form(SCHEMA)}),
        ("chat", "say it", {"max_tokens": 40, "seed": 8, "temperature": 1.0, "response_format": form(SCHEMA)}),
        *(("completions", SHARED + f"fill {i}", {"max_tokens": 60, "seed": i, "temperature": 1.0}) for i in range(8)),
    ]


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def answers(api: Api) -> list[list[Choice]]:
    return at_once(lambda asked: api.choices(asked[0], asked[1], **asked[2]), mixed())


def test_answers_are_those_of_one_rank_under_load_with_drafts_grammars_and_preemption(alone: Api, ranks: Api) -> None:
    expected = answers(alone)
    for _ in range(2):  # the second time with what the prefix cache has kept
        for asked, several, one in zip(mixed(), answers(ranks), expected, strict=True):
            assert [choice.text for choice in several] == [choice.text for choice in one], asked
            assert [choice.finish_reason for choice in several] == [choice.finish_reason for choice in one], asked
            for choice, other in zip(several, one, strict=True):
                numbers = [(a, b) for a, b in zip(choice.logprobs, other.logprobs, strict=True) if a is not None]
                assert all(a == pytest.approx(b, abs=1e-3) for a, b in numbers), asked
    assert ranks.counter("num_preemptions_total") > 0
    assert ranks.counter("prefix_cache_hits_total") > 0


def test_each_rank_is_a_process_and_says_why_it_computes_with_torch(ranks: Api) -> None:
    log = ranks.server.log()
    assert len({ranks.server.pid_of(f"worker.{rank}") for rank in range(2)}) == 2
    assert log.count("worker.computes_with_torch dtype=float32 reason='it computes a model on one rank'") >= 2


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_answers_of_two_stages_are_those_of_one(model: Path, alone: Api, send: Callable[..., Reply], size: int) -> None:
    """And when one of their ranks is killed in the middle."""
    words = ["--dtype", "float32", "--tensor-parallel", str(size), *settings(*MODEL, *STAGES)]
    expected = [[choice.text for choice in choices] for choices in answers(alone)]
    with ServerProcess(str(model), *words) as server:
        stages = Api(server, send)
        assert [[choice.text for choice in choices] for choices in answers(stages)] == expected
        assert stages.counter("num_preemptions_total") > 0
        with ThreadPoolExecutor(1) as threads:
            begun = stages.counter("generation_tokens_total")
            again = threads.submit(answers, stages)
            while stages.counter("generation_tokens_total") < begun + 200:
                time.sleep(0.02)  # between two looks at the counter, so as not to starve the engine
            os.kill(server.pid_of("worker.1"), signal.SIGKILL)
            assert [[choice.text for choice in choices] for choices in again.result()] == expected
        server.terminate()
        assert server.wait() == 0, server.log()


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.nightly)])
def test_streams_go_on_when_a_rank_is_killed(alone: Api, ranks: Api, rank: int) -> None:
    """All ranks end with it and begin anew, with other boards; 16 streams end with the tokens that they would have."""

    def ask(api: Api, index: int) -> str:
        fields = {"max_tokens": 60, "seed": index, "temperature": 1.0, "stream": True}
        return api.text("completions", SHARED + f"stream {index}", **fields)

    expected = at_once(lambda index: ask(alone, index), range(NUM_STREAMS))
    before = [ranks.server.pid_of(f"worker.{rank}") for rank in range(2)]
    with ThreadPoolExecutor(NUM_STREAMS) as threads:
        begun = ranks.counter("generation_tokens_total")
        streams = [threads.submit(ask, ranks, index) for index in range(NUM_STREAMS)]
        while ranks.counter("generation_tokens_total") < begun + NUM_STREAMS * 15:
            time.sleep(0.02)  # between two looks at the counter, so as not to starve the engine
        os.kill(before[rank], signal.SIGKILL)
        assert [stream.result() for stream in streams] == expected
    after = [ranks.server.pid_of(f"worker.{rank}") for rank in range(2)]
    assert not set(before) & set(after)
    died = re.findall(r"process\.died process=(worker\.\d) pid=(\d+)", ranks.server.log())
    assert {(f"worker.{rank}", str(pid)) for rank, pid in enumerate(before)} <= set(died)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [3, 2])
def test_reference_prompts(smollm2_gguf: Path, size: int) -> None:
    """SmolLM2 has 9 heads and 3 KV heads: a group a rank, or a group of zeros on the second of two."""
    with serve(smollm2_gguf, f"process.worker.tensor_parallel={size}") as server:
        check(server)
        assert any(check(server, REFERENCES[::4])), "the prefix cache has them"


@pytest.mark.nightly
@pytest.mark.parametrize(("stages", "size"), [(2, 1), (2, 3)])
def test_reference_prompts_in_stages(smollm2_gguf: Path, stages: int, size: int) -> None:
    pairs = f"process.worker.pipeline_parallel={stages}", f"process.worker.tensor_parallel={size}"
    with serve(smollm2_gguf, *pairs) as server:
        check(server)


@pytest.mark.nightly
def test_reference_prompts_in_a_small_pool(smollm2_gguf: Path) -> None:
    with serve(smollm2_gguf, "process.worker.tensor_parallel=3", *SMALL_POOL) as server:
        check(server)
        assert read_counter(server.url, "callboard:num_preemptions_total") > 0


@pytest.mark.nightly
def test_reference_prompts_and_a_rank_that_is_killed(smollm2_gguf: Path) -> None:
    with serve(smollm2_gguf, "process.worker.tensor_parallel=3") as server:
        assert run_with_a_kill(server, REFERENCES[::2], process="worker.2") == []
        assert "process.died process=worker.2" in server.log()
